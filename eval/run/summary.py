"""The report of a run, from the samples in its folder."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ...models.packaged import checkpoint_of
from ..measure import bootstrap
from ..measure.quality import loss_of
from ..modalities.base import modality
from ..schema import MethodResult, Report
from .job import QUALITY_BATCH, Job, Plan, plan
from .run_folder import RunFolder


def summarize_run(job: Job, todo: Plan, folder: RunFolder, command: Sequence[str] = ()) -> Report:
    """The report of what `folder` holds."""
    found = modality(job.suite.pipeline).findings(job, todo, folder)
    rows, notes = found.rows, list(found.notes)
    timed = max((row.n_speed for row in rows.values()), default=0)
    judged = min((row.n for row in rows.values()), default=0)
    if todo.quality:
        notes += _undecided(job, rows)
        if judged > todo.quality and (todo.most > todo.quality or not todo.limited):
            notes.append(
                f"samples rose from {todo.quality} to {judged} until the comparison was decided: "
                "each look is at 95 %, all of them together are less sure"
            )
    whole = plan(job, None)  # a run of before may have had all of it
    lacks = timed < whole.speed or bool(whole.quality and judged < whole.quality)
    if short := todo.limited and lacks:
        notes.insert(0, "cut short by --limit: not for reporting")
    held = max(timed * bool(todo.speed), judged * bool(todo.quality))
    asked = max(todo.speed, todo.quality)
    if todo.limited and held > asked:
        notes.append(
            f"the folder held {held} samples already: all of them count, and --limit {asked} "
            "drops none; choose another folder for fewer"
        )
    # a run that was cut short has looked at fewer than the one that went on
    target = max(folder.log.of("target"), key=lambda line: line.get("samples", 0))
    for row in rows.values():
        row.target_entropy = target["entropy"]
    counted = {
        "speed_prompts": timed,
        "speed_batches": list(todo.batches) if todo.speed else [],
        "closed_loop": todo.closed_loop,
        "warmup_calls": 0,
        "quality_samples": max((row.n for row in rows.values()), default=0) if todo.quality else 0,
        "quality_prompts": 0,
        "quality_batch": QUALITY_BATCH,
        "margin": job.suite.margin,
    }
    ways = {"calls": job.suite.calls, "sceptics": job.suite.sceptics}
    calls = {name: given for name, given in ways.items() if given}
    return Report(
        suite=job.suite.name,
        pipeline=job.suite.pipeline,
        model=job.model or "embedded",
        command=shlex.join(command),
        settings={**job.call, **calls, "seed": job.seed, **counted, **found.settings},
        environment=target["environment"],
        target_entropy=target["entropy"],
        costs=found.costs,
        methods=rows,
        notes=notes,
        for_reporting=not short,
        date=folder.log.date,
        checkpoint=checkpoint_of(job.model) if job.model else None,
        seconds_total=folder.log.seconds,
    )


def _undecided(job: Job, rows: dict[str, MethodResult]) -> list[str]:
    """Notes on undecided verdicts, and the number of samples that would decide each."""
    more, too_few = dict[int, list[str]](), []
    metric, margin = job.suite.metrics[0], job.suite.margin
    for name, row in rows.items():
        found = row.quality.get(metric)
        if found is None or margin is None or found.verdict != "undecided":
            continue
        if found.difference_ci95 is None:
            too_few.append(name)
            continue
        need = bootstrap.samples_to_decide(loss_of(found.difference_ci95), margin, row.n)
        more.setdefault(row.n, []).append(f"{name} ({need})")
    notes = [
        f"{count} samples can't tell a loss of {metric} above {margin:g} from a smaller one; about "
        f"so many would (--max-samples): {', '.join(needs)}"
        for count, needs in more.items()
    ]
    if too_few:
        notes.append(f"{', '.join(too_few)}: too few samples for an interval of {metric}")
    return notes
