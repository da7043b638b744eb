"""What the page does when its buttons are pressed, without a browser."""

from __future__ import annotations

import re
import shutil
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import pytest

from mmspec.app.folders import Folders
from mmspec.app.job_queue import RUNS, JobQueue
from mmspec.app.limits import Limits
from mmspec.app.model_cache import ModelCache
from mmspec.app.page import STOPPING, Page
from mmspec.app.server import _example
from mmspec.app.tabs import TABS, Tab
from mmspec.errors import InputError
from mmspec.methods import SpecConfig
from mmspec.models.embedded import readable
from mmspec.models.text_encoder import unknown_words
from mmspec.pipelines.model_folders import embedded_name, shipped
from mmspec.registry import resolve
from mmspec.train.tokenizers import caption_tokenizer, clip_tokenizer, exchange_tokenizer

LIMITS = Limits(upload_bytes=200_000, prompt=200)


def visitor(name: str = "one", host: str = "127.0.0.1", **headers: str) -> SimpleNamespace:
    return SimpleNamespace(
        session_hash=name, client=SimpleNamespace(host=host), headers=dict(headers)
    )


@pytest.fixture
def page(folders):
    made = Page(ModelCache({m: [f] for m, f in folders.items()}), Folders(), LIMITS)
    yield made
    made.jobs.close()


@pytest.fixture
def picture_file(tmp_path):
    from answering import picture

    picture(0).save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


TAB = {tab.modality: tab for tab in TABS}
METHOD = {"image": "scd", "vlm": "draft", "continuous": "gamma-maximal", "video": "sdvg"}


def given(tab: Tab, page: Page, **changes) -> dict:
    """The fields of a tab as they stand, but for the changes."""
    fields = {setting.name: setting.value for setting in tab.settings}
    fields |= {"prompt": "what is red", "method": METHOD[tab.modality], "knob": None, "more": ""}
    fields |= {"seed": 0, "model": page.cache.names(tab.modality)[0]}
    return {**fields, **changes}


def shown(page: Page, modality: str, who: SimpleNamespace | None = None, **changes) -> list[str]:
    """The last headline and panels that the page shows; updates that skip leave what was there."""
    tab, last = TAB[modality], ["", "", ""]
    for update in page.generate(tab, given(tab, page, **changes), who or visitor()):
        last = [new if isinstance(new, str) else old for old, new in zip(last, update, strict=True)]
    return last


@pytest.mark.parametrize("modality", TAB)
def test_both_sides_of_every_modality(page, modality, picture_file):
    changes = {"picture": str(picture_file)} if modality == "vlm" else {}
    headline, speculative, plain = shown(page, modality, **changes)
    assert re.search(r"Done: [\w-]+ is [\d.]+× as fast as plain decoding", headline), headline
    assert METHOD[modality] in speculative
    assert "plain" in plain
    assert re.search(r"drafts that stood</dt><dd>\d+%", speculative)
    assert "drafts that stood" not in plain
    assert "drafted share</dt><dd>0%" in plain


def one(page: Page, modality: str = "image", who: SimpleNamespace | None = None, **changes) -> str:
    """The last headline, as text."""
    return re.sub("<[^>]*>", "", shown(page, modality, who, **changes)[0])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"prompt": "  "}, "the prompt is empty"),
        ({"prompt": "x" * 201}, "the prompt has 201 characters, more than 200"),
        ({"prompt": ["a"]}, "the prompt must be text"),
        ({"seed": -1}, "the seed must be an integer from 0"),
        ({"seed": 0.5}, "the seed must be an integer from 0"),
        ({"seed": None}, "the seed must be an integer from 0"),
        ({"seed": float("nan")}, "the seed must be an integer from 0"),
        ({"temperature": 3}, "Temperature; 0 is greedy must be a number from 0 to 2"),
        ({"knob": 9999}, "window must be an integer from 1 to 256"),
        ({"knob": "16]"}, "window must be a number"),
        ({"knob": float("nan")}, "window must be a number"),
        ({"knob": float("inf")}, "window must be a number"),
        ({"more": "rule=antigravity:Rule"}, "no references to code"),
        ({"more": "drafter=antigravity:Drafter"}, "no references to code"),
        ({"more": "window=8,merge=antigravity:a,lookup"}, "no references to code"),
        ({"method": "draft[rule=antigravity:Rule]"}, "unknown method"),
        ({"more": "windw=3"}, "did you mean"),
        ({"more": "nonsense"}, "a setting is NAME=VALUE"),
        ({"method": "sdvg"}, "is for a model that makes videos"),
        ({"method": "none"}, "unknown method"),
        ({"model": "../etc"}, "there is no model"),
        ({"path": "/etc"}, "this demo opens no paths"),
    ],
)
def test_bad_input_is_one_line(page, changes, told):
    headline, *_ = shown(page, "image", **changes)
    assert told in headline.replace("&#x27;", "'")
    assert 'role="alert"' in headline
    assert "Traceback" not in headline
    assert not page.jobs._jobs  # nothing waits


def test_bad_pictures(page, tmp_path):
    from PIL import Image

    text, large, wide, cut = (tmp_path / n for n in ("a.png", "b.png", "c.png", "d.png"))
    text.write_text("no picture")
    large.write_bytes(b"x" * 200_001)
    Image.new("1", (5000, 4000)).save(wide)
    Image.effect_noise((64, 64), 50).save(cut)
    cut.write_bytes(cut.read_bytes()[:500])
    bitmap = tmp_path / "e.bmp"
    Image.new("RGB", (8, 8)).save(bitmap)
    for file, told in (
        (None, "there is no picture"),
        (tmp_path / "gone.png", "the picture is no longer here; upload it again"),
        (text, "no PNG, JPEG or WebP"),
        (large, "more than 200,000"),
        (wide, "5000×4000 pixels"),
        (cut, "can&#x27;t read|no PNG"),
        (bitmap, "no PNG, JPEG or WebP"),
    ):
        assert re.search(told, one(page, "vlm", picture=None if file is None else str(file)))


def test_prompts_are_escaped(page):
    prompt = "<script>alert(1)</script> ${alert(2)} {{value}} \"'"
    headline, *panels = shown(page, "image", prompt=prompt)
    assert "Done" in headline
    for panel in panels:
        assert "<script" not in panel
        assert "${" not in panel
        assert "{{" not in panel
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in panel
        assert "&quot;&#x27;" in panel


def test_words_that_a_model_does_not_know_are_named(page):
    """Of no other run's prompt, and escaped."""
    told = one(page, prompt="a photo of a <wombat> and a red circle")
    assert told.startswith("Done: ")
    assert told.endswith("The model does not know “wombat”.")
    assert "does not know" not in one(page, prompt="a photo of a red circle")


def test_a_tab_says_what_the_embedded_model_knows(page):
    """Of no other model; what it is said to know it does."""
    tokenizers = {"image": caption_tokenizer, "vlm": exchange_tokenizer}
    tokenizers |= {"continuous": caption_tokenizer, "video": clip_tokenizer}
    for modality, tab in TAB.items():
        tokenizer = tokenizers[modality]()
        assert len(tab.examples) >= 3
        assert [unknown_words(tokenizer, text) for text in tab.examples] == [[]] * len(tab.examples)
        assert page._hint(tab, page.cache.names(modality)[0]) == ""
        own = f"embedded-{embedded_name(modality)}"
        hint = page._hint(tab, own)
        assert ("nothing but" in hint) == (own in shipped())
        assert page._hint(tab, own, "a/path") == ""


def test_examples_are_put_in_by_the_browser(page):
    """A button each, which asks nothing of the server."""
    import gradio as gr

    blocks = page.build()
    shown = [block.value for block in blocks.blocks.values() if isinstance(block, gr.Button)]
    put = [fn.js for fn in blocks.fns.values() if fn.js and not fn.fn]
    for text in (text for tab in TABS for text in tab.examples):
        assert text in shown
        assert f'() => "{text}"' in put


def test_both_sides_have_the_seed(page, monkeypatch):
    from mmspec.app.pictures import ImageView

    generate, seeds = ImageView.generate, []

    def seen(view, generator, **call):
        seeds.append((view.pipe.speculation.method, generator.initial_seed()))
        return generate(view, generator=generator, **call)

    monkeypatch.setattr(ImageView, "generate", seen)
    _, speculative, plain = shown(page, "image", seed=7, temperature=0)
    assert set(seeds) == {("scd", 7), ("plain", 7)}
    assert images(speculative)[0] == images(plain)[0]
    assert images(speculative)[1] != images(plain)[1]


@pytest.fixture
def slow(monkeypatch):
    """What is made waits in every round until it may go on."""
    rounds, go = [], threading.Event()

    def slowed(observe):
        def slowly(view, state):
            observe(view, state)
            rounds.append(len(view.made))
            go.wait(0.2)

        return slowly

    for tab in TABS:
        view = resolve(tab.view)
        monkeypatch.setattr(view, "observe", slowed(view.observe))
    return rounds, go


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
    rounds, _ = slow
    tab, told = TAB[modality], []
    fields = given(tab, page, picture=str(picture_file), **changes)
    run = page.generate(tab, fields, visitor())
    while "plain decoding follows" not in "".join(told):
        told += [text for text in next(run)[:1] if isinstance(text, str)]
    seen = len(rounds)
    run.close()  # as Gradio does
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


def test_both_sides_are_shown_as_they_go(page, slow):
    """Tokens as they stand, and how fast speculation was, against plain decoding so far."""
    tab, told, parts = TAB["image"], [], [set(), set()]
    for headline, *panels in page.generate(tab, given(tab, page, knob=2), visitor()):
        told += [headline] if isinstance(headline, str) else []
        for found, html in zip(parts, panels, strict=True):
            found |= set(re.findall(r"(\d+) of 16", html if isinstance(html, str) else ""))
    assert any(re.search(r"So far: [\d.]+× as fast", text) for text in told)
    assert all(len(found) > 2 and "16" in found for found in parts)


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
    from mmspec.app.video import VideoView

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


def test_a_run_has_an_end(folders, slow):
    """After its seconds it stops within a round, and the page says why; the next may begin."""
    rounds, go = slow
    page = Page(ModelCache({"image": [folders["image"]]}), Folders(), Limits(seconds=0.1))
    told = one(page, knob=1)
    assert told == "Stopped: a run has at most 0.1 seconds."
    assert rounds == [1]  # of the warm-up
    go.set()
    page.limits = Limits()
    assert one(page).startswith("Done: ")
    page.jobs.close()


def test_a_stopped_run_leaves_the_next_alone(page, slow):
    _, go = slow
    tab = TAB["image"]
    first = page.generate(tab, given(tab, page), visitor("one"))
    while "at work" not in str(next(first)[0]):
        pass
    first.close()  # Gradio begins the next one at once
    second = page.generate(tab, given(tab, page, seed=7), visitor("two"))
    assert next(second)[0] == ""
    go.set()
    assert "Stopped." in page.ended(tab, STOPPING, visitor("one"))[0]
    *_, (headline, speculative, plain) = second
    assert "Done" in headline
    alone = shown(page, "image", visitor("three"), seed=7)
    for crowded, quiet in zip((speculative, plain), alone[1:], strict=True):
        assert images(crowded) == images(quiet)
    assert images(speculative) != images(shown(page, "image", seed=8)[1])


def images(html: str) -> list[str]:
    return re.findall(r'src="([^"]*)"', html)


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


def test_a_reference_to_code_is_not_imported(page, tmp_path, monkeypatch):
    (tmp_path / "visited.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert "no references to code" in one(page, more="rule=visited:Rule")
    assert "visited" not in sys.modules


def test_methods_are_those_that_a_model_can_run(page):
    tab = TAB["vlm"]
    offered, first = page._offered(tab, "vlm")  # it has a drafter, and no heads
    assert first == "draft"
    assert {"prompt-lookup", "draft", "drafter-only"} <= set(offered)
    assert not {"eagle", "hydra", "verdict", "plain"} & set(offered)
    offered, first = page._offered(tab, "embedded-vlm")
    assert first == "eagle"
    assert {"vispec", "specvlm", "msd", "flash"} <= set(offered)
    assert not {"hydra", "dflash"} & set(offered)
    page.folders = Folders(anywhere=True)
    here = str(page.cache.folder("vlm", "vlm"))
    assert page._offered(tab, "embedded-vlm", here, visitor())[1] == "draft"
    assert page._offered(tab, "embedded-vlm", "no such", visitor())[1] == "eagle"
    for modality, wanted in (("image", "scd"), ("continuous", "reflection"), ("video", "sdvg")):
        assert page._offered(TAB[modality], page.cache.names(modality)[0])[1] == wanted


def test_the_contract_follows_knob_and_settings(page):
    tab = TAB["image"]
    assert "Exact: " in page._about(tab, "scd")
    assert "Exact: " in page._about(tab, "scd", 2)
    moved = page._about(tab, "scd", 2, " rule=lantern, lantern_delta=0.1 ")
    assert "Lossy: " in moved
    assert "acceptance rule lantern," in moved
    for wrong in ({"value": 9999}, {"more": "windw=3"}, {"more": "rule=antigravity:Rule"}):
        assert 'role="alert"' in page._about(tab, "scd", **wrong)
    assert "no drafter" in page._about(tab, None)


def test_a_model_without_a_drafter(page, undrafted):
    """Nothing is offered, and the page says why wherever a method would be."""
    tab, nothing = TAB["video"], "this model has no drafter: there is nothing to speculate with"
    page.cache = ModelCache({"video": [undrafted]})
    assert page._offered(tab, "video") == ([], None)
    blocks = page.build()
    texts = [str(getattr(block, "value", "")).lower() for block in blocks.blocks.values()]
    assert sum(nothing in text for text in texts) == 2  # the headline, and in the method's place
    assert nothing in one(page, "video", method=None)
    assert not page.jobs._jobs


def test_a_checkpoint_by_its_path(folders, tmp_path, monkeypatch):
    """It draws what it draws when it is offered; one that is offered is not loaded twice."""
    for name in ("offered", "first", "second"):
        shutil.copytree(folders["image"], tmp_path / name)
    monkeypatch.chdir(tmp_path)
    page = Page(ModelCache({"image": [Path("offered")]}), Folders(tmp_path), LIMITS)
    pictures = {}
    for path in ("", "offered", str(tmp_path / "offered"), "first", "second"):
        headline, speculative, plain = shown(page, "image", path=path)
        assert "Done" in headline, headline
        pictures[path] = images(speculative), images(plain)
        kept = [folder.name for _, folder in page.cache._kept]
        assert kept == ["offered", *([path] if path in ("first", "second") else [])]
    assert all(found == pictures[""] for found in pictures.values())
    page.jobs.close()


def test_a_path_is_told_as_it_was_typed(page, tmp_path):
    """Where the server has it is nobody's business."""
    (tmp_path / "root" / "mine").mkdir(parents=True)
    (tmp_path / "root" / "mine" / "model_index.json").write_text("[]")
    page.folders = Folders(tmp_path / "root")
    for typed in ("mine", "./mine"):
        told = one(page, path=typed)
        assert told.startswith(f"{typed}/model_index.json does not hold a JSON object"), told
    page.cache = ModelCache({"image": [tmp_path / "root" / "mine"]})
    assert str(tmp_path) not in one(page, model="mine")


def test_the_cache_is_not_named(page, tmp_path, monkeypatch):
    """Neither that of an unpacked model, nor why it can't be unpacked."""
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "cache"))
    page.cache = ModelCache({})
    (tmp_path / "cache").write_text("no folder")
    told = one(page, model="embedded-image")
    assert "can't unpack" in told.replace("&#x27;", "'")
    assert "into the cache: " in told
    assert str(tmp_path) not in told
    (tmp_path / "cache").unlink()
    broken = readable(shipped()["embedded-image"]) / "transformer" / "config.json"
    broken.write_text("[]")
    told = one(page, model="embedded-image")
    assert told.startswith("embedded-image/transformer/config.json "), told


def test_folders_of_one_name_are_told_apart():
    """By no more of their paths than it takes."""
    given = [Path("a/model"), Path("/secret/b/model"), Path("c/other"), Path("d/embedded-image")]
    names = ModelCache({"image": given}).names("image")
    assert names == ["a/model", "b/model", "other", "d/embedded-image", "embedded-image"]
    given = [Path("/secret/a/model"), Path("/secret/a/b/model"), Path("/c/b/model")]
    names = ModelCache({"image": given}).names("image")
    assert names[:-1] == ["a/model", "a/b/model", "c/b/model"]
    cache = ModelCache({"image": [Path("/model"), Path("/a/model")]})
    assert cache.names("image") == ["/model", "a/model", "embedded-image"]
    assert cache.folder("image", "a/model") == Path("/a/model")


def test_what_is_offered_runs_on_the_embedded_models():
    cache = ModelCache({})
    for modality in TAB:
        pipe = cache.load(modality, None).pipe
        for method in cache.methods(modality, f"embedded-{embedded_name(modality)}"):
            if method != "verdict":
                pipe.check_speculation(SpecConfig(method))


LONG = dict.fromkeys(("continuous", "video"), pytest.mark.slow)


@pytest.mark.parametrize("modality", [pytest.param(m, marks=LONG.get(m, ())) for m in TAB])
def test_the_page_as_it_opens_generates(modality, tmp_path):
    """The fields as they stand when nobody has touched them, read from the page itself."""
    page = Page(ModelCache({}), Folders(), Limits(), _example(tmp_path))
    fields, generate = opened(page, modality)
    last = ["", "", ""]
    for update in generate(visitor(), *fields):
        last = [new if isinstance(new, str) else old for old, new in zip(last, update, strict=True)]
    page.jobs.close()
    assert re.search(r"Done: [\w-]+ is [\d.]+× as fast as plain decoding", last[0]), last[0]


def opened(page: Page, modality: str):
    """The values of a tab's fields, and the function that its button calls."""
    blocks = page.build()
    (at,) = (n for n, tab in enumerate(TABS) if tab.modality == modality)
    buttons = [f for f in blocks.fns.values() if f.name == "generate"]
    return [field.value for field in buttons[at].inputs], buttons[at].fn


def test_what_fails_inside_is_told_without_a_trace(page, monkeypatch, caplog):
    from mmspec.app.pictures import ImageView

    def broken(side):
        raise RuntimeError("the secret of /root")

    monkeypatch.setattr(ImageView, "html", broken)
    assert one(page) == "something went wrong on the server; its log says what"
    assert "the secret" in caplog.text


def test_where_nothing_is_embedded_the_page_says_so(page, monkeypatch, tmp_path):
    from mmspec.models import embedded

    monkeypatch.setattr(embedded, "MODELS", tmp_path)
    assert page.cache.missing("continuous") is None  # a folder is given
    page.cache = ModelCache({})
    told = page.cache.missing("continuous")
    assert told == "no model embedded-mar ships with this version (there are none); name a folder"
    assert told in shown(page, "continuous")[0]
