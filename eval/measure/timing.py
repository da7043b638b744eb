"""Paired timing: methods take turns prompt by prompt in one process, ratios are taken in pairs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ...engine.stats import SpecStats
from ...methods import SpecConfig
from ...pipelines.notices import timed_apart
from ...pipelines.video.stats import VideoStats
from ..variants import Variant
from .meters import EnergyMeter, PeakMemory


@dataclass
class Sample:
    """One pipeline call.

    Attributes:
        seconds: wall-clock of all of it.
        peak_memory: bytes; energy: joules; None where the platform doesn't tell.
    """

    prompt: str | list[str]
    seed: int
    seconds: float
    stats: SpecStats
    output: Any
    peak_memory: int | None = None
    energy: float | None = None

    @property
    def decode_seconds(self) -> float:
        """Seconds in the token loop; of video, whose blocks are seen as they are made, all."""
        return self.seconds if isinstance(self.stats, VideoStats) else self.stats.loop_seconds


def timed(
    device: torch.device, prompt: str | list[str], seed: int, call: Callable[[], Any]
) -> Sample:
    """One call, whose output has `stats`, with what it took."""
    meter, memory = EnergyMeter(device), PeakMemory(device)
    joules, started = meter.read(), time.perf_counter()
    out = call()
    seconds = time.perf_counter() - started
    return Sample(prompt, seed, seconds, out.stats, out, memory.read(), meter.since(joules))


def rotated(names: Iterable[str], turn: int) -> list[str]:
    """The names in the order of a turn."""
    order = list(names)
    at = turn % len(order)
    return order[at:] + order[:at]


def in_turn(
    pipe: Any,
    arms: Mapping[str, Variant],
    prompt: str | list[str],
    seed: int,
    turn: int,
    on_sample: Callable[[], object] = lambda: None,
) -> dict[str, Sample]:
    """One prompt, or one batch, by every arm; `turn` rotates the order.

    Row b has seed `seed + b`, and the arm's shift. The result is in the order in which they ran.
    """
    before, samples = pipe.speculation, {}
    try:
        for name in rotated(arms, turn):
            arm, rows = arms[name], 1 if isinstance(prompt, str) else len(prompt)
            pipe.enable_speculation(arm.config)
            first = seed + arm.shift
            generator = [torch.Generator().manual_seed(first + row) for row in range(rows)]
            run = partial(pipe, prompt, generator=generator, **arm.call)
            samples[name] = timed(pipe.device, prompt, first, run)
            on_sample()
    finally:
        pipe.enable_speculation(before)
    return samples


def paired_runs(
    pipe: Any,
    methods: dict[str, SpecConfig],
    prompts: Sequence[str | list[str]],
    seed: int,
    call: dict[str, Any],
    warmup: int = 1,
    on_sample: Callable[[], object] = lambda: None,
) -> dict[str, list[Sample]]:
    """Run every method on every prompt in turn; the order rotates from prompt to prompt.

    Args:
        pipe: a pipeline with `enable_speculation`.
        methods: configurations by name.
        prompts: one sample each, or a batch; prompt i uses seed `seed + i` in every method.
        call: keyword arguments of every pipeline call.
        warmup: calls per method that are not counted.
        on_sample: called after every call, of the warm-up too.
    """
    arms = {name: Variant(config, call) for name, config in methods.items()}
    samples: dict[str, list[Sample]] = {name: [] for name in methods}
    for i in range(-warmup, len(prompts)):
        at = max(i, 0)
        with timed_apart() if i < 0 or len(arms) > 1 else nullcontext():
            ran = in_turn(pipe, arms, prompts[at], seed + at, i, on_sample)
        for name, sample in ran.items():
            if i >= 0:
                samples[name].append(sample)
    return samples
