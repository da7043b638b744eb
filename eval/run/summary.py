"""The report of a run, from the samples in its folder."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...errors import InputError
from .. import bootstrap
from ..methods import place, role
from ..metrics.table import METRICS
from ..quality import loss_of, quality_rows, set_quality
from ..reference import reference_pictures, set_distance
from ..schema import MethodResult, Report
from ..speed import WARMUP, mean_costs, noise_notes, speed_rows
from ..variation import summarize
from .job import QUALITY_BATCH, Job, Plan
from .run_folder import RunFolder

OF_SETS = ("frechet", "kid")  # kinds of metrics


def summarize_run(job: Job, todo: Plan, folder: RunFolder, command: Sequence[str] = ()) -> Report:
    """The report of what `folder` holds."""
    log, methods, notes = folder.log, list(job.configs), []
    if todo.limited:
        notes.append("cut short by --limit: not for reporting")
    rows: dict[str, MethodResult] = {}
    if todo.quality:
        rows = quality_rows(log.of("quality"), log.of("counts"), methods, job.suite.decides)
        notes += _compare_sets(job, folder, rows)
        notes += _undecided(job, rows)
        notes += _looks(todo, rows)
    costs: dict[str, dict[int, float]] = {}
    if todo.speed:
        lines = log.of("speed")
        timed = speed_rows(lines, job.configs)
        costs = mean_costs(lines)
        rows = {name: _joined(timed[name], rows.get(name)) for name in methods}
        notes += noise_notes(lines, timed)
    target = log.of("target")[0]
    entropy = target["entropy"]
    for name, row in rows.items():
        row.role = role(name, job.configs[name])
        row.family, row.knob, row.knob_value = place(job.configs[name])
        row.target_entropy = entropy
    for line in log.of("variation"):
        rows[line["method"]].tv_per_step = summarize(line["values"])
    settings = {
        **job.call,
        "seed": job.seed,
        "speed_prompts": max((row.n_speed for row in rows.values()), default=0),
        "speed_batches": list(todo.batches) if todo.speed else [],
        "warmup_calls": WARMUP if todo.speed else 0,
        "quality_samples": max((row.n for row in rows.values()), default=0) if todo.quality else 0,
        "quality_prompts": len({line["prompt"] for line in log.of("quality")}),
        "quality_batch": QUALITY_BATCH,
        "margin": job.suite.margin,
    }
    return Report(
        suite=job.suite.name,
        pipeline=job.suite.pipeline,
        model=job.model or "embedded",
        command=shlex.join(command),
        settings=settings,
        environment=target["environment"],
        target_entropy=entropy,
        costs=costs,
        methods=rows,
        notes=notes,
        for_reporting=not todo.limited,
    )


def _looks(todo: Plan, rows: dict[str, MethodResult]) -> list[str]:
    """Said where samples rose until the comparison was decided."""
    n = min(row.n for row in rows.values())
    if n <= todo.quality:
        return []
    rose = f"samples rose from {todo.quality} to {n} until the comparison was decided"
    return [f"{rose}: each look is at 95 %, all of them together are less sure"]


def _joined(timed: MethodResult, judged: MethodResult | None) -> MethodResult:
    """One row from both measurements: what is counted from the judged samples, which are more."""
    if judged is None:
        return timed
    for name in ("n", "nfe_per_sample", "target_tokens_per_sample", "mean_acceptance_length"):
        setattr(timed, name, getattr(judged, name))
    timed.acceptance_by_position = judged.acceptance_by_position
    timed.quality = judged.quality
    timed.phase_seconds["reward"] = judged.phase_seconds["reward"]
    return timed


def _compare_sets(job: Job, folder: RunFolder, rows: dict[str, MethodResult]) -> list[str]:
    """Distances of whole sets of pictures join the rows; returns what a reader must know."""
    from ...rewards.registry import load_features

    names = [m for m in job.suite.metrics if m in METRICS and METRICS[m].kind in OF_SETS]
    count = min(row.n for row in rows.values())
    if names and count < 2:
        return [f"{', '.join(names)}: a set of one picture has no distance to another"]
    notes: list[str] = []
    for network in dict.fromkeys(METRICS[name].network for name in names):
        path = job.files.get(network)
        extractor = load_features(network, Path(path) if path else None, job.device)
        lines = folder.log.of("quality")
        of_method = {
            name: _features(extractor, folder.path, [x for x in lines if x["method"] == name])
            for name in rows
        }
        truth = reference_pictures(job, count)
        reference = np.concatenate([extractor.features(batch).numpy() for batch in truth])
        rounds = 200 if reference.shape[1] <= 512 else 0  # a distance of 2048 takes seconds
        for name in (n for n in names if METRICS[n].network == network):
            if METRICS[name].kind == "frechet" and count <= reference.shape[1]:
                notes.append(
                    f"{name}: {count} pictures for {reference.shape[1]} features: the distance is "
                    "far too large; compare it at equal counts only"
                )
            distance = set_distance(METRICS[name].kind, reference)
            for method, row in rows.items():
                plain = None if method == "plain" else of_method["plain"][:count]
                row.quality[name] = set_quality(distance, of_method[method][:count], plain, rounds)
    return notes


def _features(extractor: Any, folder: Path, lines: list[dict[str, Any]], batch: int = 64) -> Any:
    """Features `[N, D]` of a method's pictures, in the order of the samples."""
    paths = [folder / line["picture"] for line in sorted(lines, key=lambda x: int(x["index"]))]
    parts = []
    for first in range(0, len(paths), batch):
        try:
            pictures = [Image.open(path).convert("RGB") for path in paths[first : first + batch]]
        except OSError as error:
            raise InputError(f"a picture of this run can't be read: {error}") from error
        parts.append(extractor.features(pictures).numpy())
    return np.concatenate(parts)


def _undecided(job: Job, rows: dict[str, MethodResult]) -> list[str]:
    """What the samples leave open, and how many would close it."""
    notes, too_few = [], []
    metric, margin = job.suite.metrics[0], job.suite.margin
    for name, row in rows.items():
        found = row.quality.get(metric)
        if found is None or margin is None or found.verdict != "undecided":
            continue
        if found.difference_ci95 is None:
            too_few.append(name)
            continue
        need = bootstrap.samples_to_decide(loss_of(found.difference_ci95), margin, row.n)
        notes.append(
            f"{name}: {row.n} samples can't tell a loss of {metric} above {margin:g} from a "
            f"smaller one; about {need} would (--max-samples)"
        )
    if too_few:
        notes.append(f"{', '.join(too_few)}: too few samples for an interval of {metric}")
    return notes
