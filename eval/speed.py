"""Speed of methods, paired prompt by prompt at batch 1, and how near the engine is to the ideal."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..config import SpecConfig
from ..pipelines.image import ImagePipeline
from ..worlds.shapes import Prompt
from .ideal import BareCosts, ideal_seconds
from .schema import MethodResult
from .timing import Sample, paired_runs, ratio_interval


def measure_speed(
    pipe: ImagePipeline,
    configs: dict[str, SpecConfig],
    prompts: Sequence[Prompt],
    seed: int,
    call: dict[str, Any],
    on_line: Callable[[dict[str, Any]], None],
) -> tuple[dict[str, MethodResult], dict[str, BareCosts]]:
    """Rows of the report by method, and the bare costs behind their ideals.

    Args:
        configs: methods by name, "plain" among them.
        on_line: receives what `samples.jsonl` says of every sample.
    """

    costs = bare_costs(pipe, call)

    def on_sample(name: str, sample: Sample) -> None:
        sample.output = None  # pictures would pile up
        for bare in costs.values():
            bare.renew()
        sample.bare_seconds = ideal_seconds(
            configs[name], sample.stats, costs["target"], costs.get("drafter")
        )
        on_line(
            {
                "method": name,
                "prompt": sample.prompt,
                "seed": sample.seed,
                "seconds": sample.seconds,
                "decode_seconds": sample.decode_seconds,
                "bare_seconds": sample.bare_seconds,
                "nfe": sample.stats.nfe,
                "mean_acceptance_length": sample.stats.mean_acceptance_length,
                "phase_seconds": sample.stats.seconds,
            }
        )

    texts = [p.prompt for p in prompts]
    samples = paired_runs(pipe, configs, texts, seed, call, on_sample=on_sample)
    rows = {name: summarize(name, many, samples["plain"]) for name, many in samples.items()}
    return rows, costs


def bare_costs(pipe: ImagePipeline, call: dict[str, Any]) -> dict[str, BareCosts]:
    """Bare forward costs of the target and of the drafter, if there is one."""
    network, grid = pipe.network(call.get("height"), call.get("width"))
    rows = 1 if call.get("guidance_scale", 2.0) == 1 else 2
    costs = {"target": BareCosts(pipe.decoder(network), rows, grid)}
    if pipe.drafter is not None:
        costs["drafter"] = BareCosts(pipe.decoder(pipe.drafter), rows, grid)
    return costs


def summarize(name: str, samples: list[Sample], plain: list[Sample]) -> MethodResult:
    """One method's row of the report."""
    stats = [s.stats for s in samples]
    total = stats[0].merged(stats[1:])
    pairs = list(zip(plain, samples, strict=True))
    ideal = statistics.median(p.decode_seconds / s.bare_seconds for p, s in pairs)
    measured, interval = ratio_interval([p.decode_seconds / s.decode_seconds for p, s in pairs])
    row = MethodResult(
        contract=total.contract,
        n=len(samples),
        nfe_per_sample=total.nfe,
        target_tokens_per_sample=float(np.mean(total.target_tokens)),
        mean_acceptance_length=total.mean_acceptance_length,
        acceptance_by_position=total.acceptance_by_position,
        seconds_median=statistics.median(s.seconds for s in samples),
        decode_seconds_median=statistics.median(s.decode_seconds for s in samples),
        phase_seconds={p: t / len(samples) for p, t in sorted(total.seconds.items())},
        ideal_speedup=ideal,
        engine_efficiency=measured / ideal,
    )
    if name != "plain":
        row.speedup_median, row.speedup_ci95 = measured, interval
        row.speedup_end_to_end_median = statistics.median(p.seconds / s.seconds for p, s in pairs)
    return row
