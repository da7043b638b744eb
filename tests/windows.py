"""Pages in a real browser, in windows of a phone's and of a desktop's size."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZES = {"phone": (390, 844), "desktop": (1280, 800)}

# what reaches out of the window, and does not lie in something that scrolls or cuts it off
_WIDER = """() => {
  const inside = (one) => {
    for (let around = one.parentElement; around; around = around.parentElement)
      if (around !== document.documentElement && around !== document.body
          && getComputedStyle(around).overflowX !== "visible"
          && around.getBoundingClientRect().right <= window.innerWidth + 1) return true;
    return false;
  };
  const out = [...document.querySelectorAll("body *")].filter((one) => one.offsetParent
    && one.getBoundingClientRect().right > window.innerWidth + 1 && !inside(one));
  return out.map((one) => `${one.tagName}.${one.className}`);
}"""


@contextmanager
def opened() -> Iterator[Any]:
    """A browser."""
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert found, f"browser tests need one of {', '.join(BROWSERS)} on the PATH"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def window(browser: Any, size: str) -> Iterator[Any]:
    """A page of a window of that size; a phone's lays out as phones do, and is touched."""
    width, height = SIZES[size]
    phone = size == "phone"
    context = browser.new_context(
        viewport={"width": width, "height": height}, is_mobile=phone, has_touch=phone
    )
    try:
        yield context.new_page()
    finally:
        context.close()


def too_wide(page: Any) -> list[str]:
    """What makes a page wider than its window, or is cut off at its side; [] if nothing does."""
    width = page.viewport_size["width"]
    grown = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    return [*([] if grown == [width, width] else [f"the page: {grown}"]), *page.evaluate(_WIDER)]
