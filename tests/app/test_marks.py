"""What the page claims: who made what, in which colour, how much faster, from which seed."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from answering import picture
from PIL import Image

import mmspec.app
from mmspec import ImagePipeline, SpecConfig, VlmPipeline
from mmspec.app import markup
from mmspec.app.comparison import Comparison
from mmspec.app.generation_view import GenerationRequest, GenerationView
from mmspec.app.job_queue import QueuedJob
from mmspec.app.model_cache import Model
from mmspec.app.views import ImageView, VlmView

BLUE, ORANGE = "#0072b2", "#d55e00"


def run(
    kind: type[GenerationView], pipe, config: SpecConfig, **call
) -> tuple[GenerationView, list[bool]]:
    """A view that has run, and for every token whether the engine says that it was drafted."""
    stood: list[bool] = []

    class Noted(kind):
        def observe(self, state):
            stood.extend(state["context"].drafted()[0])
            super().observe(state)

    pipe.set_progress_bar_config(disable=True)
    pipe.enable_speculation(config)
    view = Noted(pipe, GenerationRequest("what is red", config, "x", 3, call, picture(0)))
    view.run(lambda: False)
    assert {True, False} == set(stood)
    return view, stood


def pixels(html: str, kind: str) -> list[str]:
    """Colours of a picture in a view."""
    found = re.search(f'<img class="{kind}" src="data:image/png;base64,([^"]+)"', html)
    with Image.open(io.BytesIO(base64.b64decode(found[1]))) as image:
        data = image.convert("RGB").tobytes()
    return [f"#{data[at : at + 3].hex()}" for at in range(0, len(data), 3)]


def test_mosaic_of_a_picture(folders):
    pipe = ImagePipeline.from_pretrained(folders["image"])
    view, stood = run(ImageView, pipe, SpecConfig("scd", window=4), guidance_scale=1.0)
    assert len(stood) == 16
    assert pixels(view.html(), "mm-mosaic") == [BLUE if told else ORANGE for told in stood]
    view.made = view.made[:5]  # as it was when five tokens were there
    assert pixels(view.html(), "mm-mosaic")[5:] == [markup.OPEN] * 11


def test_pieces_of_an_answer(folders):
    pipe = VlmPipeline.from_pretrained(folders["vlm"])
    view, stood = run(VlmView, pipe, SpecConfig("draft"), temperature=1.0, max_new_tokens=24)
    out = view.generate(generator=torch.Generator().manual_seed(3), **view.request.call)
    pieces = view.pieces()
    assert "".join(text for text, _ in pieces) == out.text[0]
    tokenizer = pipe.processor.tokenizer
    words = [tokenizer.decode([token], skip_special_tokens=True) for token in view.tokens]
    told = [(word, made) for word, made in zip(words, stood, strict=True) if word]
    assert [(word, made) for text, made in pieces for word in text.split()] == told
    shown = re.findall(r'<span class="mm-(drafter|target)">(.*?)</span>', view.html())
    assert [(text, maker == "drafter") for maker, text in shown] == [
        (markup.escape(text), made) for text, made in pieces
    ]


def test_colours_are_not_swapped():
    """Legend, shares, words and blocks: blue is the drafter's."""
    keys = re.findall(r'background:(#\w+)"></span>(\w+)', markup.legend("drafted", "made"))
    assert keys == [(BLUE, "drafted"), (ORANGE, "made")]
    assert (markup.blend(1.0), markup.blend(0.0)) == (BLUE, ORANGE)
    style = (Path(mmspec.app.__file__).parent / "page.css").read_text()
    for rule, colour in (
        (r"\n\.mm-text \.mm-drafter", BLUE),
        (r"\n\.mm-block\.mm-by-drafter", BLUE),
        (r"\n\.mm-block", ORANGE),
    ):
        assert re.search(rf"{rule} \{{[^}}]*({colour})", style), rule


def view(seconds: float, units: int) -> SimpleNamespace:
    """As far as a comparison looks at it."""
    stub = SimpleNamespace(made=[1.0] * units, stats=SimpleNamespace(loop_seconds=seconds))
    return SimpleNamespace(seconds_per_unit=GenerationView.seconds_per_unit.fget(stub))


@pytest.mark.parametrize(
    ("speculative", "plain", "told"),
    [
        (view(1.0, 8), view(2.0, 8), "2.00× as fast as plain decoding"),
        (view(2.0, 8), view(1.0, 8), "0.50× as fast as plain decoding"),
        (view(1.0, 4), view(4.0, 8), "2.00× as fast as plain decoding"),
        (view(1.0, 8), view(2.0, 0), ""),
        (view(1.0, 8), view(0.0, 8), ""),
    ],
)
def test_ratio(speculative, plain, told):
    comparison = Comparison(
        lambda pipe, request: plain,
        Model(None),
        GenerationRequest("", SpecConfig(), ""),
        QueuedJob("one"),
        60,
    )
    comparison.views["speculative"] = speculative
    assert comparison._ratio() == ""
    comparison.views["plain"] = plain
    assert comparison._ratio() == told


def test_views_rest(monkeypatch):
    """Four times as long as the last one took, and a quarter of a second at least."""
    now = 100.0
    monkeypatch.setattr(mmspec.app.comparison.time, "monotonic", lambda: now)

    class Slow(SimpleNamespace):
        def html(self):
            nonlocal now
            now += self.takes
            return ""

    comparison = Comparison(
        lambda pipe, request: None,
        Model(None),
        GenerationRequest("", SpecConfig(), ""),
        QueuedJob("one"),
        60,
    )
    assert comparison._due()
    for takes, rest in ((0.01, 0.25), (0.5, 2.0)):
        comparison._show("plain", Slow(takes=takes, stats=None, meters=list))
        now += rest - 0.01
        assert not comparison._due()
        now += 0.02
        assert comparison._due()
