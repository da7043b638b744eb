"""Calls of the target against the side of the token grid: with the side, or with the area?"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mmspec.errors import InputError
from mmspec.eval.environment import environment
from mmspec.eval.measure.bootstrap import Interval, known_interval
from mmspec.methods import SpecConfig
from mmspec.pipelines.output import ImageStats

SIDES = (8, 16, 32)
BATCH = 24  # rows of a call

Calls = Mapping[int, npt.NDArray[np.float64]]  # [n] of each side, in the order of the samples


@dataclass
class Growth:
    """Growth of one method's calls with the side of the grid.

    Attributes:
        contract: what the method promises about its output.
        pixels: side of the picture in pixels by side of the grid in tokens.
        nfe: mean calls of the target per sample by side; prefill is not counted.
        nfe_ci95: its bootstrap interval.
        target_tokens: mean tokens that the target processed in them.
        sibling_nfe: mean calls of a sibling that drew a small picture first, where there is one;
            they are not in `nfe`.
        exponent: a of NFE ∝ sideᵃ, the least-squares line through the logarithms; None for a
            single side. One token a call has 2, one row of the grid a call 1.
        exponent_ci95: by resampling the prompts, the same ones at every side.
    """

    contract: str
    pixels: dict[int, int] = field(default_factory=dict)
    nfe: dict[int, float] = field(default_factory=dict)
    nfe_ci95: dict[int, Interval] = field(default_factory=dict)
    target_tokens: dict[int, float] = field(default_factory=dict)
    sibling_nfe: dict[int, float] = field(default_factory=dict)
    exponent: float | None = None
    exponent_ci95: Interval | None = None

    def add(self, side: int, height: int, stats: ImageStats) -> None:
        """Add a side of the grid, whose pictures are `height` pixels high."""
        self.pixels[side] = height
        self.nfe[side] = statistics.fmean(stats.calls)
        self.target_tokens[side] = statistics.fmean(stats.target_tokens)
        if stats.sibling_calls:
            self.sibling_nfe[side] = statistics.fmean(stats.sibling_calls)
        counts = np.array(stats.calls)
        if spread := known_interval(lambda i: counts[i].mean(1), len(counts)):
            self.nfe_ci95[side] = spread


@dataclass
class GrowthRecord:
    """Contents of `growth.json`.

    Attributes:
        methods: by name; one that could draw at no side is missing.
        notes: which sides and methods were left out, and why.
    """

    samples: int
    seed: int
    call: dict[str, Any]
    environment: dict[str, Any]
    methods: dict[str, Growth] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def measure_growth(
    pipes: Sequence[Any],
    methods: Mapping[str, SpecConfig],
    prompts: Sequence[str],
    seed: int = 0,
    call: Mapping[str, Any] | None = None,
    sides: Sequence[int] = SIDES,
    progress: Callable[[int], None] = lambda samples: None,
) -> GrowthRecord:
    """Draw every prompt by every method at every side that there is a network for.

    Args:
        pipes: pipelines; a side is drawn by one whose own size it is, or else by the first that can
            draw it.
        prompts: a sample each; sample i has seed `seed + i` at every side and in every method.
        call: arguments of every pipeline call.
        progress: told how many samples are done since it was last told.

    Raises:
        InputError: nobody can draw at any of the sides, or a method asks no target.
    """
    for name, config in methods.items():
        if config.resolve("image").unasked:
            raise InputError(f"{name} never calls the target: there is nothing to count")
    record = GrowthRecord(len(prompts), seed, dict(call or {}), environment(pipes[0].device))
    calls: dict[str, dict[int, npt.NDArray[np.float64]]] = {name: {} for name in methods}
    for side in sides:
        try:
            pipe, height = _of_side(pipes, side)
        except InputError as error:
            record.notes.append(f"side {side} is left out: {error}")
            progress(len(prompts) * len(methods))
            continue
        for name, config in methods.items():
            try:
                stats = _drawn(pipe, config, prompts, seed, {**record.call, "height": height})
            except InputError as error:
                record.notes.append(f"{name} is left out at side {side}: {error}")
            else:
                calls[name][side] = np.array(stats.calls, dtype=np.float64)
                record.methods.setdefault(name, Growth(stats.contract)).add(side, height, stats)
                if stats.fault:
                    record.notes.append(f"{name} at side {side}: its drafter failed: {stats.fault}")
            progress(len(prompts))
    if not record.methods:
        raise InputError(f"nothing can be drawn: {'; '.join(record.notes)}")
    for name, row in record.methods.items():
        if len(row.nfe) > 1:
            row.exponent, row.exponent_ci95 = exponent(calls[name])
    record.methods = {name: record.methods[name] for name in methods if name in record.methods}
    return record


def _of_side(pipes: Sequence[Any], side: int) -> tuple[Any, int]:
    """The pipeline that draws a side, and the height in pixels there.

    Raises:
        InputError: none does; what the last one says.
    """
    heights = [(pipe, side * pipe.vq_model.downsample_factor) for pipe in pipes]
    heights.sort(key=lambda found: found[0].default_size != found[1])
    for pipe, height in heights:
        try:
            pipe.network(height, None)
        except InputError as error:
            refused = error
        else:
            return pipe, height
    raise refused


def exponent(calls: Calls) -> tuple[float, Interval | None]:
    """The slope of log mean calls over log side, and its interval; see `Growth`."""
    sides = sorted(calls)
    counts = np.stack([calls[side] for side in sides])  # [sides, n]
    x = np.log(sides) - np.log(sides).mean()

    def slope(picked: npt.NDArray[Any]) -> npt.NDArray[Any]:  # [rounds, n] to [rounds]
        return x @ np.log(counts[:, picked].mean(-1)) / (x @ x)

    n = counts.shape[1]
    return float(slope(np.arange(n)[None])[0]), known_interval(slope, n)


@torch.inference_mode()
def _drawn(
    pipe: Any, config: SpecConfig, prompts: Sequence[str], seed: int, call: Mapping[str, Any]
) -> ImageStats:
    """The counters of all prompts by one method; a row of a batch is what it would be alone."""
    before, parts = pipe.speculation, []
    pipe.enable_speculation(config)
    try:
        for first in range(0, len(prompts), BATCH):
            captions = list(prompts[first : first + BATCH])
            rows = range(seed + first, seed + first + len(captions))
            generators = [torch.Generator().manual_seed(row) for row in rows]
            out = pipe(captions, generator=generators, output_type="tokens", **call)
            parts.append(out.stats)
    finally:
        pipe.enable_speculation(before)
    return parts[0].merged(parts[1:])
