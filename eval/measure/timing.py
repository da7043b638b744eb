"""Paired timing: variants take turns prompt by prompt in one process, ratios are taken in pairs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ...engine.stats import SpecStats
from ...methods import SpecConfig
from ...pipelines.arguments import is_chat
from ...pipelines.load_switch import any_sample
from ...pipelines.notices import timed_apart
from ..variants import MethodVariant, unchanged
from .meters import EnergyMeter, PeakMemory


@dataclass
class Sample:
    """Timed pipeline call.

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
        """Seconds that speed is measured by."""
        return self.stats.decode_seconds(self.seconds)


def timed(
    device: torch.device, prompt: str | list[str], seed: int, call: Callable[[], Any]
) -> Sample:
    """Time a call whose output has `stats`; length "auto" chooses though the call is seeded."""
    meter, memory = EnergyMeter(device), PeakMemory(device)
    joules, started = meter.read(), time.perf_counter()
    with any_sample():
        out = call()
    seconds = time.perf_counter() - started
    return Sample(prompt, seed, seconds, out.stats, out, memory.read(), meter.since(joules))


def rotated(names: Iterable[str], turn: int) -> list[str]:
    """The names in the order of a turn."""
    order = list(names)
    at = turn % len(order)
    return order[at:] + order[:at]


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
        prompts: one sample each, or a batch; prompt i uses seed `seed + i` in every method, and row
            b of a batch `seed + i + b`.
        call: keyword arguments of every pipeline call.
        warmup: calls per method that are not counted.
        on_sample: called after every call, of the warm-up too.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in methods}
    with unchanged(pipe):
        for i in range(-warmup, len(prompts)):
            first, prompt = seed + max(i, 0), prompts[max(i, 0)]
            rows = 1 if isinstance(prompt, str) or is_chat(prompt) else len(prompt)
            seeds = range(first, first + rows)
            with timed_apart() if i < 0 or len(methods) > 1 else nullcontext():
                for name in rotated(methods, i):
                    run = MethodVariant(pipe, methods[name]).prepare(prompt, seeds, call)
                    sample = timed(pipe.device, prompt, first, run)
                    on_sample()
                    if i >= 0:
                        samples[name].append(sample)
    return samples
