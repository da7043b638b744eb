"""The HTML page of a report in a browser, on a phone and on a desktop."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from windows import SIZES, too_wide, window

import mmspec
from mmspec.eval.report.pages import write_reports

pytestmark = pytest.mark.browser
STORED = Path(mmspec.__file__).parents[1] / "assets" / "reports"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["image", "vlm"])  # most columns; several ways to call
def test_a_report_fits_its_window(browser, name, tmp_path):
    """Wide tables scroll by themselves, and begin with speed beside the method's name."""
    run = shutil.copytree(STORED / name, tmp_path / name)
    write_reports(run)
    for size, (width, _) in SIZES.items():
        with window(browser, size) as page:
            page.goto((run / "report.html").as_uri())
            assert too_wide(page) == []
            table = page.locator("table.headline").first
            heading = table.locator("thead th").get_by_text("speed\u2011up", exact=True)
            speed = heading.bounding_box()
            assert speed["x"] + speed["width"] <= width
            around = page.locator(".scroll", has=table).first
            inner, outer = around.evaluate("one => [one.scrollWidth, one.clientWidth]")
            assert inner > outer  # so that there is something to scroll
            around.evaluate("one => one.scrollTo(one.scrollWidth, 0)")
            name_of_row = table.locator("tbody th").first.bounding_box()
            assert 0 <= name_of_row["x"] < width / 4  # stays while the rest moves
