"""What the page does when its buttons are pressed, without a browser."""

from __future__ import annotations

import re
import sys
from functools import partial

import gradio as gr
import pytest
from visits import METHOD, TAB, images, one, shown, visitor

from mmspec.app.folders import Folders
from mmspec.app.limits import Limits, glance_at_picture, refused
from mmspec.app.model_cache import ModelCache
from mmspec.app.page import Page
from mmspec.app.server import _example
from mmspec.app.tabs import TABS
from mmspec.models.text_encoder import unknown_words
from mmspec.pipelines.model_folders import embedded_name, shipped
from mmspec.train.tokenizers import caption_tokenizer, clip_tokenizer, exchange_tokenizer


@pytest.mark.parametrize("modality", TAB)
def test_both_sides_of_every_modality(page, modality, picture_file):
    changes = {"picture": str(picture_file)} if modality == "vlm" else {}
    headline, speculative, plain = shown(page, modality, **changes)
    assert re.search(r"Done: [\w-]+ is [\d.]+× as fast as plain decoding", headline), headline
    assert METHOD[modality] in speculative
    assert "plain" in plain
    assert re.search(r"drafts kept</dt><dd>[\d,]+ of [\d,]+ \(\d+%\)<", speculative)
    assert speculative.count("%)<") == 1  # no share of something else beside it
    assert "drafts kept" not in plain
    assert "output that was drafted</dt><dd>0 of " in plain


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
        early = refused(partial(glance_at_picture, file, page.limits))
        assert re.search(told.replace("&#x27;", "'"), early)


def test_a_picture_is_read_whole_at_its_turn_alone(page, tmp_path, monkeypatch):
    """What is said at the press of the button looks at its header."""
    from PIL import Image, ImageFile

    def never(*_):
        raise AssertionError("it was read")

    picture, text = tmp_path / "a.jpg", tmp_path / "b.jpg"
    Image.effect_noise((64, 64), 50).save(picture)
    text.write_text("no picture")
    page.example = picture
    monkeypatch.setattr(ImageFile.ImageFile, "load", never)
    fields, asked = opened(page, "vlm", "asked")
    assert "mm-error" not in asked(visitor(), *fields)
    page.example = text
    assert "no PNG, JPEG or WebP" in asked(visitor(), *fields)


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
        assert page.hint(tab, page.cache.names(modality)[0]) == ""
        own = f"embedded-{embedded_name(modality)}"
        hint = page.hint(tab, own)
        assert ("nothing but" in hint) == (own in shipped())
        assert page.hint(tab, own, "a/path") == ""


def test_examples_are_put_in_by_the_browser(page):
    """A button each, which asks nothing of the server."""

    blocks = page.build()
    shown = [block.value for block in blocks.blocks.values() if isinstance(block, gr.Button)]
    put = [fn.js for fn in blocks.fns.values() if fn.js and not fn.fn]
    for text in (text for tab in TABS for text in tab.examples):
        assert text in shown
        assert f'() => "{text}"' in put


def test_both_sides_have_the_seed(page, monkeypatch):
    from mmspec.app.views import ImageView

    generate, seeds = ImageView.generate, []

    def seen(view, generator, **call):
        seeds.append((view.pipe.speculation.method, generator.initial_seed()))
        return generate(view, generator=generator, **call)

    monkeypatch.setattr(ImageView, "generate", seen)
    _, speculative, plain = shown(page, "image", seed=7, temperature=0)
    assert set(seeds) == {("scd", 7), ("plain", 7)}
    assert images(speculative)[0] == images(plain)[0]
    assert images(speculative)[1] != images(plain)[1]


def test_a_draw_of_one_token_is_greedy(page):
    """By top-k, which is the model's own unless somebody moves it, or by top-p."""
    greedy, *others = (
        images(shown(page, "image", seed=3, **given)[2])[0]
        for given in ({"temperature": 0}, {"top_k": 1}, {"top_k": 0, "top_p": 0.05}, {})
    )
    assert others[0] == greedy
    assert others[2] != greedy
    own = images(shown(page, "image", seed=3, top_k=-1)[2])[0]
    assert own == others[2]


def test_a_reference_to_code_is_not_imported(page, tmp_path, monkeypatch):
    (tmp_path / "visited.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert "no references to code" in one(page, more="rule=visited:Rule")
    assert "visited" not in sys.modules


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


def opened(page: Page, modality: str, name: str = "generate"):
    """The values of a tab's fields, and the function of this name that its button calls."""
    blocks = page.build()
    (at,) = (n for n, tab in enumerate(TABS) if tab.modality == modality)
    buttons = [f for f in blocks.fns.values() if f.name == name]
    return [field.value for field in buttons[at].inputs], buttons[at].fn


def test_what_fails_inside_is_told_without_a_trace(page, monkeypatch, caplog):
    from mmspec.app.views import ImageView

    def broken(side):
        raise RuntimeError("the secret of /root")

    monkeypatch.setattr(ImageView, "html", broken)
    assert one(page) == "something went wrong on the server; its log says what"
    assert "the secret" in caplog.text
