"""The site: every page is on it, and it loads nothing from elsewhere. Tables fit GitHub."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import PAGES, ROOT, TEXTS

import mmspec

LOADED = re.compile(r'<(?:script|img|iframe|source)[^>]* src="([^"]*)"|<link[^>]* href="([^"]*)"')
NAV = re.findall(r"- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1], re.M)
API = {name: re.findall(r"^::: (\S+)$", text, re.M) for name, text in TEXTS.items()}
SHOWN = 838  # pixels of a page's width on GitHub
WIDE = re.compile(r"assets/(reports/.+/|models/)")  # whole reports
# what GitHub's own style says of tables
STYLE = """
main { width: 838px; font: 16px/1.5 system-ui }
table { display: block; width: max-content; max-width: 100%; overflow: auto;
        border-collapse: collapse }
th, td { padding: 6px 13px; border: 1px solid }
code { font: 85% monospace; padding: .2em .4em; white-space: break-spaces }
"""


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


def html(name: str) -> str:
    return re.sub(r"README\.md$", "index.md", name).removesuffix(".md") + ".html"


def test_every_page_is_on_the_site(site):
    """And in its nav."""
    assert sorted(NAV) == sorted(PAGES)
    assert [name for name in PAGES if not (site / html(name)).is_file()] == []


def test_the_site_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        found = [link for pair in LOADED.findall(page.read_text()) for link in pair if link]
        assert found
        assert [link for link in found if "://" in link or link.startswith("//")] == []


def test_the_api_reference_has_every_public_name(site):
    names = [name for of in API.values() for name in of]
    public = set(mmspec.__all__) - {"__version__"}
    assert public <= {name.rpartition(".")[2] for name in names}
    for page, of in API.items():
        text = (site / html(page)).read_text()
        assert [name for name in of if f'id="{name}"' not in text] == []


def test_the_changelog_begins_with_this_version():
    newest = re.search(r"^## (\S+)", TEXTS["CHANGELOG.md"], re.MULTILINE)
    assert newest is not None
    assert newest[1] == mmspec.__version__


@pytest.mark.browser
def test_tables_are_read_on_github_without_scrolling():
    markdown = pytest.importorskip("markdown").markdown
    from playwright.sync_api import sync_playwright

    browsers = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, browsers)), None)
    assert found, "install Chromium, or leave these tests out: -m 'not browser'"
    widths = "all => all.map(table => [table.scrollWidth, table.rows[0].innerText])"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page, wide, seen = opened.new_page(), [], 0
        for name, text in TEXTS.items():
            if not WIDE.match(name):
                body = markdown(text, extensions=["tables", "fenced_code"])
                page.set_content(f"<style>{STYLE}</style><main>{body}</main>")
                tables = page.eval_on_selector_all("table", widths)
                wide += [(name, *table) for table in tables if table[0] > SHOWN]
                seen += len(tables)
    assert wide == []
    assert seen > 20
