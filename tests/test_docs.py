"""The site: every page is on it, and it loads nothing from elsewhere. Tables fit GitHub."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import PAGES, ROOT, TEXTS
from windows import too_wide, window

import mmspec

LOADED = re.compile(r'<(?:script|img|iframe|source)[^>]* src="([^"]*)"|<link[^>]* href="([^"]*)"')
NAV = re.findall(r"- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1], re.M)
API = {name: re.findall(r"^::: (\S+)$", text, re.M) for name, text in TEXTS.items()}
WIDEST = (  # tables, code and signatures
    "README.md",
    "docs/methods.md",
    "docs/results.md",
    "docs/cli.md",
    "docs/api/pipelines.md",
    "assets/reports/vlm/report.md",
)
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


@pytest.mark.slow
def test_every_page_is_on_the_site(site):
    """And in its nav."""
    assert sorted(NAV) == sorted(PAGES)
    assert [name for name in PAGES if not (site / html(name)).is_file()] == []


def test_the_site_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        found = [link for pair in LOADED.findall(page.read_text()) for link in pair if link]
        assert found
        assert [link for link in found if "://" in link or link.startswith("//")] == []


def test_lists_right_under_text_are_lists(site):
    """As GitHub shows them: of warnings in reports, and of figures in model cards."""
    lines = [
        line
        for page in site.rglob("*.html")
        for paragraph in re.findall(r"<p>(.*?)</p>", page.read_text(), re.DOTALL)
        for line in paragraph.splitlines()
    ]
    assert len(lines) > 1000
    assert [line for line in lines if line.startswith("- ")] == []


@pytest.mark.slow
@pytest.mark.browser
def test_the_site_fits_a_phone(site, browser):
    """No page is wider than its window: wide tables and code scroll by themselves."""
    with window(browser, "phone") as page:
        found = {}
        for name in WIDEST:
            page.goto((site / html(name)).as_uri(), wait_until="domcontentloaded")
            found[name] = too_wide(page)
    assert {name: wide for name, wide in found.items() if wide} == {}


@pytest.mark.browser
def test_names_of_rows_stay_while_a_table_scrolls_on_a_phone(site, browser):
    first = """(table) => {
      const around = table.closest(".md-typeset__scrollwrap");
      around.scrollLeft = 150;
      const cell = table.rows[1].cells[0], behind = getComputedStyle(cell).backgroundColor;
      return [around.scrollLeft, cell.getBoundingClientRect().left, behind];
    }"""
    with window(browser, "phone") as page:
        for name in ("docs/methods.md", "docs/results.md"):
            page.goto((site / html(name)).as_uri(), wait_until="domcontentloaded")
            table = page.locator(".md-typeset__scrollwrap table").first
            table.wait_for()
            scrolled, left, behind = table.evaluate(first)
            assert scrolled == 150
            assert left >= 0
            assert behind == "rgb(255, 255, 255)"  # or the rest would shine through


def test_the_api_reference_has_every_public_name(site):
    names = [name for of in API.values() for name in of]
    public = set(mmspec.__all__) - {"__version__"}
    assert public <= {name.rpartition(".")[2] for name in names}
    for page, of in API.items():
        text = (site / html(page)).read_text()
        assert [name for name in of if f'id="{name}"' not in text] == []


@pytest.mark.browser
def test_tables_are_read_on_github_without_scrolling(browser):
    markdown = pytest.importorskip("markdown").markdown
    widths = "all => all.map(table => [table.scrollWidth, table.rows[0].innerText])"
    page, wide, seen = browser.new_page(), [], 0
    for name, text in TEXTS.items():
        if not WIDE.match(name):
            body = markdown(text, extensions=["tables", "fenced_code"])
            page.set_content(f"<style>{STYLE}</style><main>{body}</main>")
            tables = page.eval_on_selector_all("table", widths)
            wide += [(name, *table) for table in tables if table[0] > SHOWN]
            seen += len(tables)
    assert wide == []
    assert seen > 20
