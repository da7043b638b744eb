"""Rounded weights: bytes, cost of a call by its rows, and how far the laws move.

The distances are between the laws of the rounded and the unrounded target, at every token of the
unrounded one's own outputs, drawn at temperature 1: total variation, and how often the likeliest
token is another. Of continuous tokens they are of every denoising step, whose law is normal.
"""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mmspec.eval.environment import environment
from mmspec.eval.measure.bootstrap import ratio_interval
from mmspec.eval.measure.ideal_speedup import measure_forward
from mmspec.eval.report.format import fixed, interval
from mmspec.eval.report.table import Cell, Row, Table
from mmspec.methods import SpecConfig
from mmspec.methods.registry import WEIGHTS
from mmspec.models.guided import GuidedDecoder
from mmspec.models.rounded import linear
from mmspec.models.setting import Setting
from mmspec.models.transformers.text_inputs import process_texts
from mmspec.pipelines.continuous.pipeline import ContinuousImagePipeline
from mmspec.pipelines.text.pipeline import TextPipeline

ROWS = (1, 2, 4, 8, 16)  # tokens of a call
LENGTH = 48  # tokens of a text
REPEATS = 15  # calls that are timed
AS_STORED = "float32"
TEXTS = (
    "Write a short story about a fox who learns to read.",
    "Explain to a child why the sky is blue.",
    "What are the three largest cities of France? Say a sentence about each.",
    "Translate into German: The train to the coast leaves at nine in the morning.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "A shop sells pens at 3 for 2 dollars. What do 12 pens cost? Think step by step.",
    "Summarize: Bees visit flowers for nectar, and carry pollen on. Without them harvests shrink.",
    "Give five tips for somebody who moves to a new town.",
)
CAPTIONS = (
    "a photo of a red circle",
    "a photo of two blue stars",
    "a photo of a green square left of a red ring",
    "a photo of three yellow triangles",
)


@dataclass
class Rounding:
    """Cost and distance of a form of the weights.

    Attributes:
        megabytes: of the linear layers' weights.
        milliseconds: of a call, by tokens a row.
        maps: milliseconds of the linear layers alone, one after the other for one row.
        variation, most_variation: total variation to the unrounded laws, mean and largest.
        flips: share of tokens where the likeliest is another; None: they are no ids.
        speedup, speedup_ci95: plain decoding's seconds a token unrounded over rounded, paired by
            prompt.
    """

    megabytes: float
    milliseconds: dict[int, float]
    maps: float = 0.0
    variation: float = 0.0
    most_variation: float = 0.0
    flips: float | None = 0.0
    speedup: float = 1.0
    speedup_ci95: tuple[float, float] | None = None


@dataclass
class WeightsRecord:
    """A run: its machine, prompts and laws that were measured, and what was found by form."""

    environment: dict[str, Any]
    samples: int
    laws: int
    forms: dict[str, Rounding] = field(default_factory=dict)


class Subject(Protocol):
    """A pipeline as it is measured; `weights` is a form, None: as they are."""

    linears: list[nn.Linear]

    def decode(self, sample: int, weights: str | None) -> tuple[Tensor, float]:
        """Output tokens of a plain generation, and seconds a token of its loop."""

    def apart(
        self, sample: int, tokens: Tensor, weights: str | None
    ) -> tuple[Tensor, Tensor | None]:
        """Total variation `[n]` of its laws over the tokens to the unrounded ones, and whether
        their likeliest tokens differ `[n]`, if they are ids."""

    def call(self, rows: int, weights: str | None) -> float:
        """Seconds of a call of `rows` tokens."""


class IdsSubject(ABC):
    """Tokens that are ids: their laws are lists of probabilities."""

    def apart(self, sample: int, tokens: Tensor, weights: str | None) -> tuple[Tensor, Tensor]:
        laws, truth = (self.laws(sample, tokens, form).double() for form in (weights, None))
        return (laws - truth).abs().sum(-1) / 2, laws.argmax(-1) != truth.argmax(-1)

    @abstractmethod
    def laws(self, sample: int, tokens: Tensor, weights: str | None) -> Tensor:
        """Laws `[S, V]` at each of the tokens."""


class TextSubject(IdsSubject):
    """Answers of a language model."""

    def __init__(self, pipe: TextPipeline) -> None:
        self.pipe = pipe
        self.linears = linears_of(pipe.model)

    def decode(self, sample: int, weights: str | None) -> tuple[Tensor, float]:
        self.pipe.enable_speculation(SpecConfig("plain", target_weights=weights))
        started = time.perf_counter()
        out: Any = self.pipe(
            TEXTS[sample % len(TEXTS)],
            max_new_tokens=LENGTH,
            temperature=1.0,
            generator=torch.Generator().manual_seed(sample),
        )
        seconds = out.stats.decode_seconds(time.perf_counter() - started)
        return torch.tensor(out.tokens), seconds / len(out.tokens[0])

    def laws(self, sample: int, tokens: Tensor, weights: str | None) -> Tensor:
        text = TEXTS[sample % len(TEXTS)]
        decoder, guided = self._guided(text, tokens.shape[1], weights)
        with decoder.repacked():
            guided.start(1)
            inputs = torch.cat([tokens[:, :1], tokens[:, :-1]], dim=1)
            return guided.extend(inputs, [-1])[0]

    def call(self, rows: int, weights: str | None) -> float:
        decoder, guided = self._guided(TEXTS[0], LENGTH, weights)
        with decoder.repacked():
            return guided.seconds_per_call(rows, repeats=REPEATS)

    def _guided(self, text: str, limit: int, weights: str | None) -> tuple[Any, GuidedDecoder]:
        config = SpecConfig("plain", target_weights=weights)
        decoder = self.pipe.prepared(config.resolve("vlm")).target
        inputs = process_texts(self.pipe.tokenizer, [text], self.pipe.model.device)
        prompt = decoder.prompt(inputs["input_ids"], inputs["attention_mask"].bool(), limit)
        decoder.place(prompt)
        prefix, warp = (prompt.embedded, prompt.mask), partial(torch.softmax, dim=-1)
        return decoder, GuidedDecoder(decoder, Setting(*prefix, None, warp, limit, 0, max(ROWS)))


class ImageSubject(IdsSubject):
    """Pictures of a LlamaGen model, in two rows: guidance."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        network = pipe.transformer
        self.linears = [*linears_of(network.layers), *linears_of(network.output)]

    def decode(self, sample: int, weights: str | None) -> tuple[Tensor, float]:
        self.pipe.enable_speculation(SpecConfig("plain", target_weights=weights))
        started = time.perf_counter()
        out = self.pipe(
            CAPTIONS[sample % len(CAPTIONS)],
            generator=torch.Generator().manual_seed(sample),
            output_type="tokens",
        )
        seconds = out.stats.decode_seconds(time.perf_counter() - started)
        return out.images, seconds / out.images.shape[1]

    def laws(self, sample: int, tokens: Tensor, weights: str | None) -> Tensor:
        caption = [CAPTIONS[sample % len(CAPTIONS)]]
        laws: Tensor = self.pipe.token_laws(caption, tokens, weights=weights)
        return laws[0]

    def call(self, rows: int, weights: str | None) -> float:
        _, grid = self.pipe.network(None, None)
        decoder = self.pipe.decoder(self.pipe.transformer, weights)
        return measure_forward(decoder, 2, grid, rows)


def linears_of(module: nn.Module) -> list[nn.Linear]:
    """Linear layers in a module."""
    return [m for m in module.modules() if isinstance(m, nn.Linear)]


def _subject(pipe: Any) -> Subject:
    if isinstance(pipe, TextPipeline):
        return TextSubject(pipe)
    if isinstance(pipe, ContinuousImagePipeline):
        from .continuous_weights import ContinuousSubject

        return ContinuousSubject(pipe)
    return ImageSubject(pipe)


@torch.inference_mode()
def measure_weights(pipe: Any, samples: int) -> WeightsRecord:
    """Measure every form of the weights of a pipeline's target, in turn.

    Args:
        pipe: a `TextPipeline`, `ImagePipeline` or `ContinuousImagePipeline`, on the processor.
        samples: prompts, each decoded once with each form.
    """
    subject = _subject(pipe)
    forms: dict[str, str | None] = {AS_STORED: None, **{n: n for n in WEIGHTS.names()}}
    count = sum(layer.weight.numel() for layer in subject.linears)
    stored = {name: form and (WEIGHTS.get(form).inside or form) for name, form in forms.items()}
    bits = {name: 32 if form is None else WEIGHTS.get(form).bits for name, form in stored.items()}
    record = WeightsRecord(environment(pipe.device), samples, 0)
    for name, form in forms.items():
        subject.decode(0, form)  # packs the weights
        record.forms[name] = Rounding(count * bits[name] / 8 / 1e6, {})
        record.forms[name].maps = 1e3 * _maps_alone(subject.linears, form)
    for rows in ROWS:
        for name, form in forms.items():
            record.forms[name].milliseconds[rows] = 1e3 * subject.call(rows, form)
    distances: dict[str, list[Tensor]] = {name: [] for name in forms}
    others: dict[str, list[Tensor]] = {name: [] for name in forms}
    ratios: dict[str, list[float]] = {name: [] for name in forms}
    for sample in range(samples):
        tokens, unrounded = subject.decode(sample, None)
        for name, form in forms.items():
            if form is not None:
                variation, flips = subject.apart(sample, tokens, form)
                distances[name].append(variation)
                others[name] += [] if flips is None else [flips]
                ratios[name].append(unrounded / subject.decode(sample, form)[1])
    for name in list(forms)[1:]:
        row, apart, other = record.forms[name], torch.cat(distances[name]), others[name]
        record.laws = len(apart)
        row.variation, row.most_variation = float(apart.mean()), float(apart.max())
        row.flips = float(torch.cat(other).double().mean()) if other else None
        row.speedup, row.speedup_ci95 = ratio_interval(ratios[name])
    return record


def _maps_alone(linears: list[nn.Linear], form: str | None) -> float:
    """Seconds of linear layers one after the other, each for one row; the median of several."""
    maps = [(linear(layer.weight, form), torch.randn(1, layer.in_features)) for layer in linears]
    taken = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        for one, x in maps:
            one(x)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def weights_table(record: WeightsRecord) -> Table:
    """A row a form."""
    rows = []
    for name, row in record.forms.items():
        calls = [f"{row.milliseconds[n]:.1f}" for n in ROWS]
        grown = row.milliseconds[ROWS[-2]] / row.milliseconds[1]
        speed = Cell(fixed(row.speedup, 2, unit="×"), interval(row.speedup_ci95, 2))
        moved = [fixed(x, 4) for x in (row.variation, row.most_variation, row.flips)]
        cells = [f"{row.megabytes:.0f}", *calls, f"{row.maps:.1f}", f"{grown:.2f}", *moved]
        rows.append(Row(name, (*map(Cell, cells), speed)))
    calls = [f"ms, {n}" for n in ROWS]
    growth, moved = f"T({ROWS[-2]})/T(1)", ["variation, mean", "largest", "argmax flips"]
    columns = ("weights", "MB", *calls, "maps alone, 1", growth, *moved, "plain, speed-up")
    caption = f"Rounded weights: {record.samples} prompts, {record.laws} laws."
    return Table(caption, columns, tuple(rows))
