"""Cost and distance of every form that weights are rounded to.

The distances are between the laws of the rounded and the unrounded target, at every token of the
unrounded one's own outputs, drawn at temperature 1: total variation, and how often the likeliest
token is another. Of continuous tokens they are of every denoising step, whose law is normal; the
steps of a clip draw nothing, so they have none.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.eval.environment import environment
from mmspec.eval.measure.bootstrap import ratio_interval
from mmspec.methods.registry import WEIGHTS
from mmspec.models.rounded import linear

from .subject import Subject

ROWS = (1, 2, 4, 8, 16)  # tokens of a call
REPEATS = 15  # calls that are timed
AS_STORED = "float32"


@dataclass
class Rounding:
    """Cost and distance of a form of the weights.

    Attributes:
        megabytes: of the linear layers' weights.
        milliseconds: of a call, by tokens a row.
        maps: milliseconds of the linear layers alone, one after the other for one row.
        variation, most_variation: total variation to the unrounded laws, mean and largest; None:
            there are no laws.
        flips: share of tokens where the likeliest is another; None: they are no ids.
        speedup, speedup_ci95: plain decoding's seconds a token unrounded over rounded, paired by
            prompt.
    """

    megabytes: float
    milliseconds: dict[int, float]
    maps: float = 0.0
    variation: float | None = 0.0
    most_variation: float | None = 0.0
    flips: float | None = 0.0
    speedup: float = 1.0
    speedup_ci95: tuple[float, float] | None = None


@dataclass
class WeightsRecord:
    """A run: its machine, prompts and laws that were measured, and what was found by form.

    Attributes:
        model: as it was asked for.
        kind: of the pipeline.
    """

    model: str
    kind: str
    environment: dict[str, Any]
    samples: int
    laws: int
    forms: dict[str, Rounding] = field(default_factory=dict)


@torch.inference_mode()
def measure_weights(subject: Subject, samples: int, model: str, kind: str) -> WeightsRecord:
    """Measure every form of the weights of a pipeline's target, in turn, on the processor.

    Args:
        samples: prompts, each decoded once with each form.
        model, kind: see `WeightsRecord`.
    """
    forms: dict[str, str | None] = {AS_STORED: None, **{n: n for n in WEIGHTS.names()}}
    count = sum(layer.weight.numel() for layer in subject.linears)
    stored = {name: form and (WEIGHTS.get(form).inside or form) for name, form in forms.items()}
    bits = {name: 32 if form is None else WEIGHTS.get(form).bits for name, form in stored.items()}
    machine = environment(subject.linears[0].weight.device)
    record = WeightsRecord(model, kind, machine, samples, 0)
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
        known = (float(apart.mean()), float(apart.max())) if len(apart) else (None, None)
        row.variation, row.most_variation = known
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
