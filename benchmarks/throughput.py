"""Throughput over batch sizes, and what a length policy costs where drafting is useless."""

from __future__ import annotations

import copy
from typing import Any

import torch

from mmspec.eval.measure.bootstrap import ratio_interval
from mmspec.eval.measure.timing import paired_runs
from mmspec.methods import SpecConfig

BATCHES = (1, 2, 4, 8, 16, 32)
PROMPTS = (
    "a photo of a red circle left of a blue square",
    "a photo of three yellow stars",
    "a photo of a green ring",
    "a photo of two purple hearts",
)
COMPARED = {
    "plain": SpecConfig(method="plain"),
    "draft": SpecConfig(method="draft"),
    "draft, goodput": SpecConfig(method="draft", length="goodput"),
    "scd": SpecConfig(method="scd"),
    "scd, goodput": SpecConfig(method="scd", length="goodput"),
}


def throughput(pipe: Any, samples: int, batches: tuple[int, ...] = BATCHES) -> dict[str, Any]:
    """Output tokens per second of the token loop, by method and batch size.

    Methods take turns within a batch size; `samples` is not asked for, a batch holds many.
    """
    methods = _possible(pipe)
    out: dict[str, dict[int, float]] = {name: {} for name in methods}
    for batch in batches:
        captions = [PROMPTS[i % len(PROMPTS)] for i in range(batch)]
        # as a prompt of `paired_runs`: one call draws the whole batch
        runs = paired_runs(pipe, methods, [captions], 0, {"output_type": "tokens"})
        for name, (run,) in runs.items():
            out[name][batch] = sum(run.stats.emitted) / run.decode_seconds
    return out


def useless_drafter(pipe: Any, samples: int) -> dict[str, Any]:
    """Plain seconds over those with goodput lengths and a drafter that is always wrong.

    The drafter is the pipeline's own with its output turned round: it favours what it should not.
    A ratio of 1 means that finding out cost nothing.
    """
    if pipe.drafter is None:
        return {}
    parts = dict(pipe.components)
    parts["drafter"] = copy.deepcopy(pipe.drafter)
    with torch.no_grad():
        parts["drafter"].output.weight.neg_()
    wrong = type(pipe)(**parts)
    wrong.set_progress_bar_config(disable=True)
    methods = {name: COMPARED[name] for name in ("plain", "draft, goodput")}
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(samples)]
    return _against_plain(paired_runs(wrong, methods, prompts, 0, {}), "draft, goodput")


def goodput_against_plain(pipe: Any, samples: int) -> dict[str, Any]:
    """The same ratio for the pipeline's own drafter and for coupled Jacobi drafting."""
    names = [name for name in _possible(pipe) if "goodput" in name]
    methods = {name: COMPARED[name] for name in ("plain", *names)}
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(samples)]
    runs = paired_runs(pipe, methods, prompts, 0, {})
    return {name: _against_plain(runs, name) for name in names}


def _possible(pipe: Any) -> dict[str, SpecConfig]:
    has = pipe.components
    return {
        n: c for n, c in COMPARED.items() if all(has.get(part) for part in c.resolve("image").needs)
    }


def _against_plain(runs: dict[str, Any], name: str) -> dict[str, Any]:
    pairs = zip(runs["plain"], runs[name], strict=True)
    ratio, interval = ratio_interval([p.decode_seconds / s.decode_seconds for p, s in pairs])
    rounds = [n for sample in runs[name] for n in sample.stats.rounds]
    return {
        "ratio_median": ratio,
        "ratio_ci95": interval,
        "calls_without_a_draft": sum(sample.stats.alone for sample in runs[name]) / len(rounds),
    }
