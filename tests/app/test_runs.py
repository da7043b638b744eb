"""Runs that go on, are stopped, wait or have no time left."""

from __future__ import annotations

import re
import threading
import time
from types import SimpleNamespace

import gradio as gr
import pytest
from visits import TAB, given, images, one, shown, visitor

from mmspec.app import comparison
from mmspec.app.folders import Folders
from mmspec.app.job_queue import RUNS, JobQueue
from mmspec.app.limits import Limits
from mmspec.app.model_cache import ModelCache
from mmspec.app.page import STOPPING, Page, _owner
from mmspec.app.tabs import TABS
from mmspec.errors import InputError
from mmspec.registry import resolve


@pytest.fixture
def slow(monkeypatch):
    """What is made waits a little in every round until it may go on, and is shown in each.

    While `free` is cleared it waits for as long as that is so.
    """
    rounds, go, free = [], threading.Event(), threading.Event()
    free.set()
    for name in ("PAUSE", "REST"):
        monkeypatch.setattr(comparison, name, 0)

    def slowed(observe):
        def slowly(view, state):
            observe(view, state)
            rounds.append(len(view.made))
            go.wait(0.2)
            free.wait(60)

        return slowly

    for tab in TABS:
        view = resolve(f"mmspec.app.views:{tab.view}")
        monkeypatch.setattr(view, "observe", slowed(view.observe))
    yield rounds, go, free
    free.set()


@pytest.mark.parametrize(
    ("modality", "changes", "most"),
    [
        ("image", {"knob": 2}, 16),
        ("vlm", {"max_new_tokens": 64}, 64),
        ("continuous", {}, 16),
        ("video", {}, 12),
    ],
)
def test_stop_ends_a_run_within_a_round(page, slow, picture_file, modality, changes, most):
    rounds, _, free = slow
    tab, told = TAB[modality], []
    fields = given(tab, page, picture=str(picture_file), **changes)
    run = page.generate(tab, fields, visitor())
    while "plain decoding follows" not in "".join(told):
        told += [text for text in next(run)[:1] if isinstance(text, str)]
    free.clear()  # the round that runs is the last, or the one before it
    seen = len(rounds)
    run.close()  # as Gradio does
    free.set()
    for who, other in (("another", tab), ("one", TAB["image" if modality == "vlm" else "vlm"])):
        assert page.ended(other, "", visitor(who))[0] == gr.skip()
    headline, *_ = page.ended(tab, STOPPING, visitor())
    assert re.sub("<[^>]*>", "", headline).startswith("Stopped.")
    assert len(rounds) <= seen + 1
    assert rounds[-1] < most


def test_stop_of_a_run_that_waits(page):
    """Gradio takes it out of the queue; a run that ended by itself leaves what it showed."""
    assert "Stopped." in page.ended(TAB["image"], STOPPING, visitor())[0]
    assert one(page).startswith("Done: ")
    assert page.ended(TAB["image"], "Done: ", visitor())[0] == gr.skip()


def test_stop_of_a_run_that_has_shown_nothing_yet(page):
    """The server may have changed the headline behind the button."""
    begun, held = threading.Event(), threading.Event()

    def work(job):
        begun.set()
        held.wait(60)

    tab = TAB["image"]
    job = page.jobs.start(_owner(tab, visitor()), work)
    assert begun.wait(60)
    job.cancel()
    held.set()
    assert "Stopped." in page.ended(tab, "Loading the model …", visitor())[0]
    assert page.ended(tab, "Done: ", visitor())[0] == gr.skip()


@pytest.mark.slow
def test_both_sides_are_shown_as_they_go(page, slow):
    """Tokens as they stand, and how fast speculation was, against plain decoding so far."""
    tab, told, parts = TAB["image"], [], [set(), set()]
    for headline, *panels in page.generate(tab, given(tab, page, knob=2), visitor()):
        told += [headline] if isinstance(headline, str) else []
        for found, html in zip(parts, panels, strict=True):
            found |= set(re.findall(r"(\d+) of 16", html if isinstance(html, str) else ""))
    assert any(re.search(r"So far: [\d.]+× as fast", text) for text in told)
    for who in ("is at work", "Plain decoding is at work"):
        left = re.compile(rf"{who}, about \d+ s left")
        assert any(left.search(text) for text in told)
    assert all(len(found) > 2 and "16" in found for found in parts)


@pytest.mark.slow
def test_what_a_run_waits_for_is_told(page, folders, slow):
    """The model and its size, then about how long; and a run that has not ended yet."""
    _, go, free = slow

    def told(modality: str) -> list[str]:
        tab = TAB[modality]
        states = page.generate(tab, given(tab, page), visitor())
        found = []
        for text, *_ in states:
            free.set()  # what ran before may end, once this one has said that it waits
            found += [text] if isinstance(text, str) else []
        return found

    go.set()
    for modality in ("image", "continuous"):
        files = [file for file in folders[modality].rglob("*") if file.is_file()]
        size = re.escape(f"{sum(file.stat().st_size for file in files) / 1e6:.3g} MB")
        assert re.search(rf"Loading the model, {size}, about \d+ s …", "".join(told(modality)))
    assert "Loading" not in "".join(told("image"))
    go.clear()
    last = page.generate(TAB["image"], given(TAB["image"], page), visitor())
    while "at work" not in str(next(last)[0]):
        pass
    free.clear()
    last.close()
    assert "Waiting for a run that was stopped" in told("image")[0]


def test_how_long_a_run_waits_for_its_turn(page):
    """By the mean of earlier runs on each tab; as long as one is missing, by the limit."""
    told = page.turn(queue_of({}, []))
    assert told == ""
    told = page.turn(queue_of({"image": 8.0}, ["image"], begun=3))
    assert told.endswith("one run is before it, about 5 s …")
    told = page.turn(queue_of({"image": 8.0, "video": 20.0}, ["image", "image", "video"], begun=3))
    assert told.endswith("3 runs are before it, about 33 s …")
    told = page.turn(queue_of({"image": 8.0}, ["image", "video"], begun=90))
    assert told.endswith("2 runs are before it, and a run ends after 30 min at the latest …")
    told = page.turn(queue_of({"image": 8.0}, ["image"], begun=90))  # longer than usual
    assert told.endswith("one run is before it, about 1 s …")


def queue_of(means: dict[str, float], tabs: list[str], begun: float = 0) -> SimpleNamespace:
    """Of Gradio what is read of its queue: the first run is at work since `begun` seconds."""
    events = [SimpleNamespace(fn=tab, concurrency_id=RUNS) for tab in tabs]
    started = {tab: {time.time() - begun} for tab in tabs[:1]}
    lines = SimpleNamespace(queue=events[1:], start_times_per_fn=started)
    return SimpleNamespace(
        process_time_per_fn={tab: SimpleNamespace(avg_time=mean) for tab, mean in means.items()},
        event_queue_per_concurrency_id={RUNS: lines},
        active_jobs=[events[:1], None],
    )


def test_stop_ends_a_clip_within_a_block(page, monkeypatch):
    """No step is taken behind the one at which a visitor stops it; the next run is whole."""
    from mmspec.models.wan.transformer import WanTransformer

    denoise, steps = WanTransformer.denoise, []

    def stopped(*given, **named):
        steps.append(1)
        if len(steps) == 3:
            page.jobs._jobs[-1].cancel()
        return denoise(*given, **named)

    monkeypatch.setattr(WanTransformer, "denoise", stopped)
    assert one(page, "video", num_inference_steps=8) == "Stopped."
    assert len(steps) == 3
    assert one(page, "video", num_inference_steps=2).startswith("Done: ")


def test_the_first_draft_of_a_clip_is_warm_up(page, monkeypatch):
    """The first block has none."""
    from mmspec.app.views import VideoView

    observe, drafted = VideoView.observe, {}

    def seen(view, state):
        observe(view, state)
        drafted.setdefault(view, []).append(sum(state["stats"].drafted))

    monkeypatch.setattr(VideoView, "observe", seen)
    assert "Done: sdvg" in one(page, "video")
    warm_up, speculative, *plain = drafted.values()
    assert warm_up == [0, 1]
    assert len(speculative) == 12
    assert [len(rounds) for rounds in plain] == [1, 12]


def test_warming_up_says_how_long_it_takes(page, monkeypatch):
    """By the rounds so far, of seven seconds each; before a model's first nothing is known."""
    from mmspec.app.views import VideoView

    observe, rounds = VideoView.observe, []
    monkeypatch.setattr(
        VideoView, "observe", lambda view, state: (rounds.append(1), observe(view, state))
    )
    clock = SimpleNamespace(monotonic=lambda: 7.0 * len(rounds))
    monkeypatch.setattr(comparison, "time", clock)
    tell, told = comparison.Comparison._tell, []
    monkeypatch.setattr(
        comparison.Comparison, "_tell", lambda run, text: (told.append(text), tell(run, text))
    )
    one(page, "video")
    said = [text.partition(": ")[0] for text in told if text.startswith("Warming up")]
    assert said == [
        "Warming up by 2 rounds",
        "Warming up by a round, about 7 s",  # one of the two is over
        "Warming up by a round, about 7 s",  # plain decoding's
    ]


def test_a_run_has_an_end(folders, slow, monkeypatch):
    """After its seconds it stops within a round, and the page says why; the next may begin."""
    rounds, go, _ = slow
    # by a clock that rounds move
    clock = SimpleNamespace(monotonic=lambda: float(len(rounds)))
    monkeypatch.setattr(comparison, "time", clock)
    page = Page(ModelCache({"image": [folders["image"]]}), Folders(), Limits(seconds=0.1))
    told = one(page, knob=1)
    assert told == "Stopped: a run has at most 0.1 seconds."
    assert rounds == [1]  # of the warm-up
    go.set()
    page.limits = Limits()
    assert one(page).startswith("Done: ")
    page.jobs.close()


def test_a_stopped_run_leaves_the_next_alone(page, slow):
    _, go, free = slow
    tab = TAB["image"]
    first = page.generate(tab, given(tab, page), visitor("one"))
    while "at work" not in str(next(first)[0]):
        pass
    free.clear()
    first.close()  # Gradio begins the next one at once
    second = page.generate(tab, given(tab, page, seed=7), visitor("two"))
    assert "Waiting for a run that was stopped" in next(second)[0]
    free.set()
    go.set()
    assert "Stopped." in page.ended(tab, STOPPING, visitor("one"))[0]
    *_, (headline, speculative, plain) = second
    assert "Done" in headline
    alone = shown(page, "image", visitor("three"), seed=7)
    for crowded, quiet in zip((speculative, plain), alone[1:], strict=True):
        assert images(crowded) == images(quiet)
    assert images(speculative) != images(shown(page, "image", seed=8)[1])


def test_places_of_a_visitor_and_of_a_host():
    """One; at another machine two; at this one, or behind its proxy, as many as there are."""
    jobs, far = JobQueue(2), "203.0.113.5"
    come = [("a", far), ("c", "127.0.0.1"), ("d", "::1"), ("e", "::1"), ("b", far)]
    events = [SimpleNamespace(concurrency_id=RUNS, **vars(visitor(*who))) for who in come]
    for event in events:
        event.request = event
    at_work, *waiting = events
    quick = SimpleNamespace(**{**vars(at_work), "concurrency_id": "default"})
    waits = {RUNS: SimpleNamespace(queue=waiting)}
    queue = SimpleNamespace(
        event_queue_per_concurrency_id=waits, active_jobs=[[at_work], None, [quick]]
    )
    for who in come:
        with pytest.raises(InputError, match="your last run is still at work"):
            jobs.check(queue, visitor(*who))
        jobs.check(queue, visitor(*who), itself=True)
    told = "2 runs from your address are in the queue; try again in a while"
    with pytest.raises(InputError, match=told):
        jobs.check(queue, visitor("f", far))
    jobs.check(queue, visitor("f", "::1"))
    waiting.append(events[0])  # of requests at the same time
    with pytest.raises(InputError, match=told):
        jobs.check(queue, visitor("b", far), itself=True)
    del waiting[-2:]
    jobs.check(queue, visitor("f", far))


def test_who_is_of_no_session_is_refused(page):
    """Such visitors could not be told apart."""
    told = "this request belongs to no page; open the demo in a browser"
    assert [one(page, who=visitor(name)) for name in (None, "")] == [told] * 2
