"""Paired timing: methods take turns prompt by prompt in one process, ratios are taken in pairs."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..config import SpecConfig
from ..engine.stats import SpecStats


@dataclass
class Sample:
    """One pipeline call."""

    prompt: str | list[str]
    seed: int
    seconds: float
    stats: SpecStats
    output: Any
    bare_seconds: float = 0.0  # of its forward passes alone, measured beside it

    @property
    def decode_seconds(self) -> float:
        """Seconds in the token loop."""
        return self.stats.loop_seconds


def paired_runs(
    pipe: Any,
    methods: dict[str, SpecConfig],
    prompts: Sequence[str | list[str]],
    seed: int,
    call: dict[str, Any],
    warmup: int = 1,
    on_sample: Callable[[str, Sample], None] | None = None,
) -> dict[str, list[Sample]]:
    """Run every method on every prompt in turn; the order rotates from prompt to prompt.

    Args:
        pipe: a pipeline with `enable_speculation`.
        methods: configurations by name.
        prompts: one sample each, or a batch; prompt i uses seed `seed + i` in every method.
        call: keyword arguments of every pipeline call.
        warmup: calls per method that are not counted.
        on_sample: called after every counted sample.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in methods}
    before = pipe.speculation
    try:
        for i in range(-warmup, len(prompts)):
            names = list(methods)
            turn = i % len(names)
            for name in names[turn:] + names[:turn]:
                pipe.enable_speculation(methods[name])
                generator = torch.Generator().manual_seed(seed + max(i, 0))
                started = time.perf_counter()
                out = pipe(prompts[max(i, 0)], generator=generator, **call)
                seconds = time.perf_counter() - started
                if i >= 0:
                    sample = Sample(prompts[i], seed + i, seconds, out.stats, out)
                    samples[name].append(sample)
                    if on_sample is not None:
                        on_sample(name, sample)
    finally:
        pipe.enable_speculation(before)
    return samples


def ratio_interval(
    ratios: Sequence[float], seed: int = 0, rounds: int = 2000
) -> tuple[float, tuple[float, float]]:
    """Median of paired ratios and its 95 % percentile-bootstrap interval."""
    values = np.asarray(ratios, dtype=np.float64)
    rng = np.random.default_rng(seed)
    medians = np.median(values[rng.integers(0, len(values), (rounds, len(values)))], axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(np.median(values)), (float(low), float(high))


def environment() -> dict[str, Any]:
    """What a reader needs to judge a timing."""
    import diffusers
    import transformers

    from .. import __version__

    cuda = torch.cuda.is_available()
    return {
        "mmspec": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "diffusers": diffusers.__version__,
        "python": platform.python_version(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
    }


def processor() -> str:
    """The processor's name, as far as the system tells."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
