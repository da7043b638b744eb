"""Speed of methods, paired prompt by prompt, and how near the engine is to the ideal."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ...engine.stats import SpecStats
from ...pipelines.image.token_pipeline import TokenImagePipeline
from ..run.job import Unit
from ..run.samples import Line, output_tokens
from ..schema import MethodResult
from ..schema_parts import Throughput
from .bootstrap import FEWEST_PAIRS, Interval, quotient_interval, ratio_interval
from .counters import counted_row, merged_stats
from .ideal_speedup import BareCosts
from .timing import Sample

WARMUP = 1  # calls of every method and batch size that are not counted
TAIL = 20  # calls from which on the slowest twentieth is told
NOISY = 0.15  # spread of the plain loop's seconds from which on a machine is called noisy


def speed_line(unit: Unit, name: str, sample: Sample) -> Line:
    """The line of a timed call; without bare forward passes, which nobody measured."""
    prompt = sample.prompt
    return {
        "kind": "speed",
        "method": name,
        "index": unit.first,
        "batch": unit.size,
        "closed_loop": unit.at_once is not None,
        "prompt": prompt if isinstance(prompt, str) else " | ".join(prompt),
        "seed": sample.seed,
        "seconds": sample.seconds,
        "decode_seconds": sample.decode_seconds,
        "bare_seconds": None,
        "costs": {},
        "nfe": sample.stats.nfe,
        "mean_acceptance_length": sample.stats.mean_acceptance_length,
        "peak_memory": sample.peak_memory,
        "energy": sample.energy,
        "stats": asdict(sample.stats),
    }


def bare_costs(pipe: TokenImagePipeline, call: dict[str, Any]) -> dict[str, BareCosts]:
    """Bare forward costs of the target and of the drafter, if there is one."""
    network, grid = pipe.network(call.get("height"), call.get("width"))
    scale = call.get("guidance_scale", pipe.image_model(network).guidance_scale)
    rows = 1 if scale == 1 else 2
    costs = {"target": BareCosts(pipe.decoder(network), rows, grid)}
    if pipe.drafter is not None:
        costs["drafter"] = BareCosts(pipe.decoder(pipe.drafter), rows, grid)
    return costs


def mean_costs(lines: Iterable[Line]) -> dict[str, dict[int, float]]:
    """Mean seconds of bare passes over all samples."""
    seen: dict[str, dict[int, list[float]]] = {}
    for line in lines:
        for who, costs in line["costs"].items():
            for width, seconds in costs.items():
                seen.setdefault(who, {}).setdefault(int(width), []).append(seconds)
    return {
        who: {width: statistics.fmean(costs[width]) for width in sorted(costs)}
        for who, costs in seen.items()
    }


def speed_rows(lines: Iterable[Line], methods: Iterable[str]) -> dict[str, MethodResult]:
    """Rows of the report by method, the baseline's first, from the lines of the log."""
    by_batch: dict[int, dict[str, list[Line]]] = {}
    plain, *_ = names = list(methods)
    for line in sorted(lines, key=lambda line: int(line["index"])):
        if line["method"] in names:
            of = by_batch.setdefault(line["batch"], {name: [] for name in names})
            of[line["method"]].append(line)
    single = by_batch[1]
    rows = {name: _row(single[name], single[plain]) for name in names}
    closed = any(line.get("closed_loop") for of in by_batch.values() for line in of[plain])
    for batch, of in by_batch.items():
        for name, row in rows.items():
            # some take one sample at a time; such calls are a load of one beside closed loops
            if of[name] and (batch > 1 or closed):
                row.throughput[batch] = _throughput(of[name], of[plain], closed)
    return rows


def _row(lines: list[Line], plain: list[Line]) -> MethodResult:
    """Row of a method at batch 1."""
    stats = merged_stats(lines)
    row = counted_row(stats, len(lines), shared=False)
    row.n_speed = len(lines)
    pairs = list(zip(plain, lines, strict=True))
    ideals = [per_token(p) / per_token(s, "bare_seconds") for p, s in pairs if s["bare_seconds"]]
    measured, interval = _ratio([per_token(p) / per_token(s) for p, s in pairs])
    if ideals:
        row.ideal_speedup = statistics.median(ideals)
        row.engine_efficiency = measured / row.ideal_speedup
    call, own = _call_seconds(merged_stats(plain)), _call_seconds(stats)
    if lines is not plain and call and own:
        row.target_efficiency = call / own
    if memory := [line["peak_memory"] for line in lines if line["peak_memory"] is not None]:
        row.peak_memory_bytes = max(memory)
    if energy := [line["energy"] for line in lines if line["energy"] is not None]:
        row.energy_joules_per_sample = statistics.fmean(energy)
    whole, decoding = ([line[what] for line in lines] for what in ("seconds", "decode_seconds"))
    row.seconds_median, row.decode_seconds_median = map(statistics.median, (whole, decoding))
    row.seconds_p95 = float(np.quantile(whole, 0.95)) if len(whole) >= TAIL else None
    tokens = sum(output_tokens(line["stats"]) for line in lines)
    row.outputs_per_second = len(lines) / sum(whole) if any(whole) else None
    row.tokens_per_second = tokens / sum(decoding) if any(decoding) else None
    emitted, calls = ([sum(line["stats"][n]) for line in lines] for n in ("emitted", "calls"))
    row.mean_acceptance_length_ci95 = quotient_interval(emitted, calls)
    if lines is not plain:
        row.speedup_median, row.speedup_ci95 = measured, interval
        ends = [per_token(p, "seconds") / per_token(s, "seconds") for p, s in pairs]
        row.speedup_end_to_end_median, row.speedup_end_to_end_ci95 = _ratio(ends)
    return row


def _call_seconds(stats: SpecStats) -> float:
    """Mean seconds of the target's calls that judge drafts; 0: there are none."""
    return stats.seconds.get("target", 0.0) / stats.scored if stats.scored else 0.0


def per_token(line: Line, seconds: str = "decode_seconds") -> float:
    """Seconds of a call over its output tokens: sampled answers are not of one length."""
    return line[seconds] / output_tokens(line["stats"])


def _throughput(lines: list[Line], plain: list[Line], closed: bool) -> Throughput:
    """Throughput of a method at a batch size.

    In a closed loop prompts are read while others are answered, so that whole calls are timed.
    """
    which = "seconds" if closed else "decode_seconds"
    rates = [1 / per_token(line, which) for line in lines]
    out = Throughput(len(lines), statistics.median(rates))
    if which == "seconds":
        waits = [pair for line in lines for pair in line["stats"].get("latency", []) if any(pair)]
        if waits:
            out.first_token_seconds = statistics.median(first for first, _ in waits)
            tokens = sum(output_tokens(line["stats"]) for line in lines)
            out.tokens_per_second_each = tokens / sum(last for _, last in waits)
    if all("head_calls" in line["stats"] for line in lines):
        out.head_calls = statistics.fmean(line["stats"]["head_calls"] for line in lines)
    if lines is not plain:
        pairs = zip(plain, lines, strict=True)
        out.speedup_median, out.speedup_ci95 = _ratio(
            [per_token(p, which) / per_token(s, which) for p, s in pairs]
        )
    return out


def _ratio(ratios: list[float]) -> tuple[float, Interval | None]:
    """The median of paired ratios, with its interval if there are enough of them."""
    median, interval = ratio_interval(ratios)
    return median, interval if len(ratios) >= FEWEST_PAIRS else None


def noise_notes(
    lines: Sequence[Line], rows: dict[str, MethodResult], plain: str = "plain"
) -> list[str]:
    """Notes on a noisy machine, told by the plain loop, and on speed-ups that are undecided."""
    alone = [line for line in lines if line["batch"] == 1 and line["method"] == plain]
    times = [per_token(line) for line in alone]
    notes = []
    if len(times) > 3:
        low, middle, high = statistics.quantiles(times, n=4)
        if (high - low) / middle > NOISY:
            notes.append(
                f"the machine was noisy: half of the plain loops differ by more than "
                f"{(high - low) / middle:.0%} in time for the same work; repeat this on a quiet one"
            )
    spreads = {name: row.speedup_interval for name, row in rows.items()}
    open_ones = [name for name, pair in spreads.items() if pair and pair[0] <= 1 <= pair[1]]
    if open_ones:
        who = ", ".join(open_ones)
        notes.append(f"{who}: the speed-up's interval holds 1: neither faster nor slower")
    return notes
