"""The site of the pages: every page is on it, all links hold, and it loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    path.relative_to(ROOT)
    for top in ("*.md", "*/*.md", "mmspec/*/*.md", "docs/**/*.md", "assets/**/*.md")
    for path in ROOT.glob(top)
    if path.resolve() == path and path.relative_to(ROOT).parts[0][0] != "."
]
LOADED = re.compile(r'<(?:script|img|iframe|source)[^>]* src="([^"]*)"|<link[^>]* href="([^"]*)"')
KEPT = ("build", "dist", "out", "runs", "site")  # what commands leave behind


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Built as `make docs` does: a link that leads nowhere fails it."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return folder


def html(page: Path) -> Path:
    return page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html")


def test_every_page_is_on_the_site(site):
    """And in its nav."""
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    listed = re.findall(r"- (\S+\.md)$", nav, re.MULTILINE)
    wanted = {page.as_posix() for page in PAGES if page.parts[0] not in KEPT}
    assert set(listed) == wanted
    assert len(listed) == len(wanted) > 40
    assert [page for page in listed if not (site / html(Path(page))).is_file()] == []


def test_the_site_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        found = [link for links in LOADED.findall(page.read_text()) for link in links if link]
        assert found
        assert [link for link in found if "://" in link or link.startswith("//")] == []


def test_the_api_reference_has_what_it_names(site):
    for page in (ROOT / "docs/api").glob("*.md"):
        named = re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
        text = (site / html(page.relative_to(ROOT))).read_text()
        assert named
        assert [name for name in named if f'id="{name}"' not in text] == []


def test_every_public_name_is_in_the_api_reference():
    import mmspec

    pages = "".join(page.read_text() for page in (ROOT / "docs/api").glob("*.md"))
    public = set(mmspec.__all__) - {"__version__"}
    assert {name for name in public if not re.search(rf"^::: \S+\.{name}$", pages, re.M)} == set()


def test_the_changelog_begins_with_this_version():
    import mmspec

    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## \[?(\d[\d.]*)", text, re.MULTILINE)[1] == mmspec.__version__


