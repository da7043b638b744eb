"""The demo as it opens, on a phone and on a desktop: what is in sight, and what a press does."""

from __future__ import annotations

import re

import pytest
from windows import SIZES, too_wide, window

from mmspec.app.server import served
from mmspec.app.tabs import TABS

pytestmark = pytest.mark.browser
TITLES = [*(tab.title for tab in TABS), "Frontier"]
RUN_TO_THE_END = ("Image", "VLM")  # the others take longer

# text in a block that reaches out of it, or lies under its label
_CUT_OFF = """(block) => {
  const box = block.getBoundingClientRect(), label = block.querySelector("label");
  const top = label ? label.getBoundingClientRect().bottom : box.top, out = [];
  const texts = document.createTreeWalker(block.querySelector("button"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(texts.currentNode);
    for (const line of range.getClientRects())
      if (line.top < top - 1 || line.bottom > box.bottom || line.right > box.right)
        out.push(texts.currentNode.data);
  }
  return out;
}"""


# a list whose chosen name runs out of it or under its arrow
_HIDDEN = "(one) => one.scrollWidth > one.clientWidth"


@pytest.fixture(scope="module")
def home():
    """The demo of the embedded models."""
    with served({}, port=None) as url:
        yield url


def in_sight(page, locator, whole: bool = False) -> bool:
    """True if it begins in the window, and, if it is to be seen whole, ends there too."""
    box, height = locator.bounding_box(), page.viewport_size["height"]
    top, bottom = box["y"], box["y"] + box["height"]
    return 0 <= top < height and box["height"] > 0 and (bottom <= height or not whole)


def check_controls(page) -> None:
    """What stands on a tab of a modality before anybody does anything."""
    for kind in ("go", "stop"):
        assert in_sight(page, page.locator(f"button.mm-{kind}:visible"), whole=True)
    methods = page.get_by_label("Method", exact=True).locator("visible=true")
    headings = methods.locator("optgroup").evaluate_all("all => all.map((one) => one.label)")
    assert re.match(r"Recommended\. .*\((exact|lossy)\)", headings[0])
    assert headings[-1].startswith("For comparison")
    assert len(set(headings)) == len(headings) >= 3
    first = methods.locator("optgroup").first.locator("option")
    assert first.count() == 1
    assert first.get_attribute("value") == methods.input_value()


def check_names(page) -> None:
    """The names of the chosen model and report can be read; then the page is scrolled down."""
    more = page.get_by_role("button", name="Model, seed and sampling").locator("visible=true")
    for opener in more.all():
        opener.click()
    lists = page.locator("input[role=combobox]").locator("visible=true")
    lists.first.wait_for()
    assert [one.input_value() for one in lists.all() if one.evaluate(_HIDDEN)] == []
    for opener in more.all():
        opener.click()


def check_press(page, title: str, size: str) -> None:
    """What a visitor sees after the button is pressed, without scrolling."""
    page.locator("button.mm-go:visible").click()
    headline = page.locator(".prose.mm-headline:visible")
    headline.filter(has_text=re.compile("^(Loading|Warming|.* is at work|Done)")).wait_for()
    page.wait_for_function(  # the page scrolls smoothly
        "() => { const at = window.scrollY; return new Promise((told) =>"
        " setTimeout(() => told(window.scrollY === at), 150)); }"
    )
    panels = [page.locator(f".block.mm-{side}:visible") for side in ("speculative", "plain")]
    assert in_sight(page, headline, whole=True)
    assert in_sight(page, panels[0])
    if title not in RUN_TO_THE_END:
        headline.filter(has_text=re.compile("(is at work|^Done)")).wait_for()
        panels[0].locator("figure").wait_for()
        page.locator("button.mm-stop:visible").click()
    headline.filter(has_text=re.compile("^(Done|Stopped)")).wait_for()
    assert in_sight(page, headline, whole=True)
    if title == "Video":
        widths = [page.locator(f".{kind}:visible").first for kind in ("mm-blocks", "mm-block")]
        line, block = (one.bounding_box()["width"] for one in widths)
        assert 2 * block + 8 <= line  # two on a line
    if size == "desktop" and title in RUN_TO_THE_END:
        assert all(in_sight(page, panel.locator("dl"), whole=True) for panel in panels)
        assert title != "Image" or all(in_sight(page, panel, whole=True) for panel in panels)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_every_tab(browser, home, size):
    with window(browser, size) as page:
        page.set_default_timeout(120_000)
        page.goto(home)
        page.locator("button.mm-go:visible").wait_for()
        for title in TITLES:
            page.evaluate("window.scrollTo(0, 0)")
            tabs = page.get_by_role("tab").locator("visible=true")
            assert tabs.all_inner_texts() == TITLES
            assert all(in_sight(page, tab, whole=True) for tab in tabs.all())
            tabs.get_by_text(title, exact=True).click()
            page.locator(".mm-go:visible, img.mm-plot:visible").first.wait_for()
            for block in page.locator(".mm-drop:visible").all():
                assert block.evaluate(_CUT_OFF) == []
            assert not re.search("on the (left|right)", page.locator("body").inner_text())
            assert too_wide(page) == [], title
            check_names(page)
            if title != "Frontier":
                check_controls(page)
                check_press(page, title, size)
                assert too_wide(page) == [], title


def test_methods_are_chosen_by_keys(browser, home):
    """By arrows and by typing a name, under the name that a screen reader says."""
    with window(browser, "desktop") as page:
        page.goto(home)
        methods = page.get_by_role("combobox", name="Method").locator("visible=true")
        methods.focus()
        page.keyboard.press("ArrowDown")
        about = page.locator(".mm-about:visible")
        about.get_by_text("Drafter early-exit,").wait_for()
        assert methods.input_value() == "early-exit"
        page.keyboard.type("lantern")
        about.get_by_text("(lossy)").wait_for()
        page.get_by_label("lantern_delta").locator("visible=true").wait_for()
        assert methods.evaluate("one => one === document.activeElement")
