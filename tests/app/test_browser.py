"""The demo in a real browser: what a visitor does, and what the console must never say."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from windows import too_wide

import mmspec
from mmspec.app.method_fields import MethodFields
from mmspec.app.reports import shipped_reports
from mmspec.app.views import ImageView
from mmspec.eval.schema import Report
from mmspec.methods import presets

pytestmark = pytest.mark.browser
REPORT = Path(mmspec.__file__).parents[1] / "assets" / "reports" / "vlm" / "report.json"
WAIT = 120_000  # ms; other work may keep the machine busy


@pytest.fixture
def visitor(browser, address) -> Iterator:
    """Opens the page for a new visitor; in the end no console has an error, nothing is missing."""
    faults: list[str] = []
    contexts = []

    def fault(text: str) -> None:
        # Gradio's client says this of a stream that it closes itself, as a page is left; 422 is how
        # Gradio answers a run whose input is refused
        if not re.search("^AbortError: signal is aborted|status of 422|^422 .*/queue/join", text):
            faults.append(text)

    def note(message) -> None:
        if message.type in ("error", "assert"):
            fault(message.text)

    def outside(request) -> None:
        if not request.url.startswith((address, "data:", "blob:")):
            faults.append(f"asks {request.url}")

    def visit(tab: str = "Image", width: int = 1280):
        context = browser.new_context(viewport={"width": width, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT)
        page.on("console", note)
        page.on("pageerror", lambda error: fault(f"{error.name}: {error.message}"))
        page.on("request", outside)
        page.on("response", lambda r: r.status >= 400 and fault(f"{r.status} {r.url}"))
        page.goto(address)
        page.get_by_role("tab", name=tab, exact=True).click()
        page.locator(".mm-go:visible, .mm-report").first.wait_for(state="attached")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not faults


@pytest.fixture
def slow(monkeypatch):
    """Rounds of pictures take a while, so that there is something to see and to stop.

    Once the event is cleared, a round waits until it is set, however slow the browser is.
    """
    observe, free = ImageView.observe, threading.Event()
    free.set()

    def slowly(view, state):
        observe(view, state)
        time.sleep(0.3)
        free.wait(WAIT / 1000)

    monkeypatch.setattr(ImageView, "observe", slowly)
    yield free
    free.set()


def headline(page):
    return page.locator(".prose.mm-headline:visible")


def says(page, pattern: str) -> str:
    """The headline, as soon as it is of that form."""
    found = headline(page).filter(has_text=re.compile(pattern))
    found.wait_for()
    return found.inner_text()


def waits(page) -> None:
    """The headline says what for, and Gradio the place in the queue."""
    says(page, "^Waiting for its turn: .*; one run is before it")
    page.get_by_text(re.compile(r"queue: 1/1")).locator("visible=true").first.wait_for()


def press(page, kind: str) -> None:
    page.locator(f"button.mm-{kind}:visible").click()


def panel(page, side: str):
    return page.locator(f".prose.mm-{side}:visible")


def picture_of(page, side: str) -> str:
    return panel(page, side).locator("img.mm-picture").get_attribute("src")


def look(page, tmp_path: Path) -> None:
    """A screenshot for whoever wants to see what was tested; no page is wider than its window."""
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert too_wide(page) == []


def choose(page, label: str, option: str) -> None:
    """An entry of a list of choices."""
    field = page.get_by_label(label, exact=True).locator("visible=true")
    if label == "Method":
        field.select_option(option)
    else:
        field.click()
        page.get_by_role("option", name=option, exact=True).click()


def upload(page, file: Path) -> None:
    page.locator("input[type=file]:visible, .block:visible input[type=file]").first.set_input_files(
        file
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tab", "width", "method"),
    [
        ("Image", 1280, "scd"),
        ("VLM", 390, "draft"),
        ("Continuous image", 1280, "drafter-only"),
        ("Video", 1280, "random-routing"),
    ],
)
def test_generate(visitor, tab, width, method, tmp_path):
    page = visitor(tab, width)
    choose(page, "Method", method)
    page.locator(".mm-about:visible").get_by_text(presets()[method].summary[1:]).wait_for()
    if tab == "VLM":
        page.locator("img.mm-thumbnail").wait_for()
    press(page, "go")
    told = says(page, "^(Done|Stopped|there|can|some)")
    assert re.match(rf"Done: {method} is [\d.]+× as fast as plain decoding", told), told
    for side in ("speculative", "plain"):
        shown = panel(page, side)
        assert shown.locator("dd").count() >= 2
        if tab == "VLM":
            assert shown.locator(".mm-text").inner_text().strip()
        else:
            assert picture_of(page, side).startswith("data:image/")
    look(page, tmp_path)


@pytest.mark.slow
def test_another_model(visitor, folders, tmp_path):
    """From the list and by its path: hint, methods and what is drawn are those of that model."""
    bare = tmp_path / "bare"
    shutil.copytree(folders["image"], bare)
    index = json.loads((bare / "model_index.json").read_text())
    (bare / "model_index.json").write_text(json.dumps({**index, "eagle": [None, None]}))
    page = visitor()
    hint, about = page.locator(".mm-hints .mm-hint:visible"), page.locator(".mm-about:visible")
    assert hint.count() == 0
    page.get_by_role("button", name="Model, seed and sampling").locator("visible=true").click()
    choose(page, "Model", "embedded-image")
    hint.get_by_text("nothing but coloured shapes").wait_for()
    choose(page, "Method", "eagle")
    about.get_by_text("(exact)").wait_for()
    more = page.get_by_label("Further settings").locator("visible=true")
    more.fill("rule=lantern")
    more.blur()
    about.get_by_text("(lossy)").wait_for()
    page.get_by_role("textbox", name="Prompt").locator("visible=true").fill(
        "a photo of a red wombat"
    )
    press(page, "go")
    told = says(page, "^(Done|Stopped|there|can|some)")
    assert re.search(r"^Done: eagle\[rule=lantern\] is .*“wombat”", told, re.DOTALL), told
    assert "256 of 256" in panel(page, "plain").inner_text()
    more.fill("")
    path = page.get_by_label("Checkpoint folder in its place").locator("visible=true")
    path.fill(str(bare))
    path.blur()
    hint.wait_for(state="detached")
    about.get_by_text(presets()["scd"].summary[1:]).wait_for()  # it has no head
    press(page, "go")
    assert says(page, "^(Done: scd|Stopped|there|can|some)").startswith("Done: scd is ")
    assert "16 of 16" in panel(page, "plain").inner_text()
    look(page, tmp_path)


def test_a_choice_outlasts_a_model_that_comes_late(visitor, monkeypatch):
    """Methods of a model that arrive after one was chosen leave it chosen."""
    offered, free, told = MethodFields.offered, threading.Event(), threading.Event()

    def late(fields, *asked):
        assert free.wait(WAIT / 1000)
        told.set()
        return offered(fields, *asked)

    page = visitor()
    about = page.locator(".mm-about:visible")
    more = page.get_by_label("Further settings").locator("visible=true")
    monkeypatch.setattr(MethodFields, "offered", late)
    page.get_by_role("button", name="Model, seed and sampling").locator("visible=true").click()
    choose(page, "Model", "embedded-image")
    choose(page, "Method", "eagle")
    about.get_by_text(presets()["eagle"].summary[1:]).wait_for()
    free.set()
    assert told.wait(WAIT / 1000)
    more.fill("rule=lantern")  # what is told of it comes behind the methods
    more.blur()
    about.get_by_text("(lossy)").wait_for()
    page.wait_for_timeout(500)
    method = page.get_by_label("Method", exact=True).locator("visible=true")
    assert method.input_value() == "eagle"


@pytest.mark.slow
def test_stop(visitor, slow, tmp_path):
    page = visitor()
    page.get_by_label("window").fill("1")
    press(page, "go")
    says(page, "plain decoding follows")
    slow.clear()
    press(page, "stop")
    says(page, "^Stopp")
    slow.set()
    assert says(page, "^(Done|Stopped)").startswith("Stopped")
    done = int(panel(page, "speculative").locator("dd").first.inner_text().split()[0])
    assert 0 < done < 16
    look(page, tmp_path)


@pytest.mark.slow
def test_two_visitors_at_once(visitor, slow):
    """Each gets what it would get alone."""
    pages = visitor(), visitor()
    prompts = "a photo of a red circle", "<b>two</b> ${blue} {{stars}}"
    for page, prompt in zip(pages, prompts, strict=True):
        page.get_by_role("textbox", name="Prompt").locator("visible=true").fill(prompt)
    press(pages[0], "go")
    says(pages[0], "plain decoding follows")
    press(pages[1], "go")
    waits(pages[1])
    together = []
    for page, prompt in zip(pages, prompts, strict=True):
        says(page, "^Done")
        assert panel(page, "plain").locator("figcaption").inner_text() == prompt
        together.append([picture_of(page, side) for side in ("speculative", "plain")])
    assert together[0] != together[1]
    alone = visitor()
    alone.get_by_role("textbox", name="Prompt").locator("visible=true").fill(prompts[1])
    press(alone, "go")
    says(alone, "^Done")
    assert [picture_of(alone, side) for side in ("speculative", "plain")] == together[1]


@pytest.mark.slow
def test_whoever_leaves_makes_room(visitor, slow, monkeypatch):
    """A run whose visitor closed the page ends, and the next in the queue begins."""
    observe, rounds = ImageView.observe, Counter()

    def counted(view, state):
        rounds[view.request.prompt] += 1
        observe(view, state)

    monkeypatch.setattr(ImageView, "observe", counted)
    leaving, staying = visitor(), visitor()
    for page, prompt in ((leaving, "a red star"), (staying, "a blue star")):
        page.get_by_role("textbox", name="Prompt").locator("visible=true").fill(prompt)
        page.get_by_label("window").fill("1")
    press(leaving, "go")
    says(leaving, "plain decoding follows")
    slow.clear()
    press(staying, "go")
    waits(staying)
    leaving.context.close()
    slow.set()
    says(staying, "^Done")
    assert rounds["a red star"] < rounds["a blue star"]
    assert rounds["a blue star"] >= 16


@pytest.mark.slow
def test_bad_uploads(visitor, tmp_path):
    """Of no picture, of one that is too large, and of what is no report: a line, and no more."""
    text, large, fine = tmp_path / "a.png", tmp_path / "b.png", tmp_path / "c.png"
    text.write_text("no picture")
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    Image.fromarray(noise).save(large)
    Image.fromarray(noise[:50]).save(fine)
    page = visitor("VLM")
    upload(page, text)
    page.locator(".mm-upload").get_by_text("no PNG, JPEG or WebP picture").wait_for()
    press(page, "go")
    page.get_by_text("no PNG, JPEG or WebP picture").nth(1).wait_for()  # at the prompt, too
    look(page, tmp_path)
    page.reload()
    page.get_by_role("tab", name="VLM", exact=True).click()
    upload(page, large)
    page.get_by_text("maximum allowed size").first.wait_for()
    look(page, tmp_path)
    page.reload()
    page.get_by_role("tab", name="VLM", exact=True).click()
    upload(page, fine)
    page.locator("img.mm-thumbnail").wait_for()


@pytest.mark.slow
def test_reports(visitor, tmp_path):
    page = visitor("Frontier")
    first = Report.read(next(iter(shipped_reports().values())))
    page.locator(".mm-report h3").get_by_text(first.suite).first.wait_for()
    upload(page, REPORT)
    page.locator(".mm-report h3").get_by_text("vlm").first.wait_for()
    page.locator("img.mm-plot").first.wait_for()
    assert page.locator(".mm-report td").count() > 10
    look(page, tmp_path)
    broken = tmp_path / "report.json"
    broken.write_text(json.dumps({"version": "<img src=x onerror=alert(1)>"}))
    page.reload()
    page.get_by_role("tab", name="Frontier", exact=True).click()
    upload(page, broken)
    page.locator(".mm-report").get_by_text("the upload is not a version").wait_for()
