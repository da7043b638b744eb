"""The rows of a vision-language run, from its lines; rows are compared within a way to call."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..measure.bootstrap import FEWEST_PAIRS, interval
from ..measure.quality import compare, quality_rows
from ..measure.speed import WARMUP, noise_notes, speed_rows
from ..methods import place, role
from ..modalities.base import Findings
from ..run.job import Job, Plan
from ..run.run_folder import RunFolder
from ..run.samples import Line
from ..schema import MethodResult
from ..schema_parts import Choice, Member, Ratio
from .arms import BLANK, PLAIN
from .bench import arms_of, row_name
from .experts import EXPERT
from .peers import PEER

LOOKUP = "prompt-lookup"


def vlm_findings(job: Job, todo: Plan, folder: RunFolder) -> Findings:
    """See `Modality.findings`."""
    log = folder.log
    refused = {line["method"]: line["reason"] for line in log.of("refused")}
    found = Findings({}, [f"{n}: left out, transformers says: {why}" for n, why in refused.items()])
    for call, given in job.calls.items():
        names = [row_name(arm, call) for arm in arms_of(job)]
        names = [name for name in names if name not in refused]
        plain = row_name(PLAIN, call)
        answers = {n: _in_order(log.of("quality"), n) for n in names}
        if todo.speed:
            lines = [line for line in log.of("speed") if line["method"] in names]
            rows = _timed_rows(job, call, lines, answers)
            found.notes += noise_notes(lines, rows, plain)
            found.settings["warmup_calls"] = WARMUP
        else:
            judged, counts = log.of("quality"), log.of("counts")
            rows = quality_rows(judged, counts, names, job.suite.decides, plain)
            _placed(job, rows, call)
            found.settings["quality_prompts"] = len({line["item"] for line in judged})
        for name, row in rows.items():
            row.call = call
            row.members, row.choices = _members(answers[name]), _choices(answers[name])
            if not given.get("temperature", 0.0):
                row.same_output = _same(answers[name], answers[plain])
        found.notes += _other_texts(rows)
        found.rows |= rows
    return found


def _timed_rows(
    job: Job, call: str, lines: Sequence[Line], answers: Mapping[str, list[Line]]
) -> dict[str, MethodResult]:
    """The rows of timed answers, which are graded too."""
    plain = row_name(PLAIN, call)
    rows = speed_rows(lines, answers, plain)
    for name, row in rows.items():
        theirs = None if name == plain else answers[plain]
        row.quality = compare(answers[name], theirs, job.suite.decides)
    _placed(job, rows, call)
    _compare_lengths(rows, lines, call)
    return rows


def _in_order(lines: Iterable[Line], method: str) -> list[Line]:
    own = [line for line in lines if line["method"] == method]
    return sorted(own, key=lambda line: int(line["index"]))


def _placed(job: Job, rows: Mapping[str, MethodResult], call: str) -> None:
    """What each row is, and its family."""
    for arm in arms_of(job):
        row = rows.get(row_name(arm, call))
        if row is None:
            continue
        row.family = row_name(arm, call)
        if arm in job.configs:
            found = place(job.configs[arm])
            row.role, row.family = role(arm, job.configs[arm]), row_name(found.family, call)
            row.knob, row.knob_value = found.knob, found.value
        elif arm.endswith(BLANK):
            row.role = "ablation"
        elif arm.startswith((PEER, EXPERT)):
            row.role = "peer" if arm.startswith(PEER) else "sceptic"


def _compare_lengths(rows: Mapping[str, MethodResult], lines: Sequence[Line], call: str) -> None:
    """Acceptance lengths over those without a picture, and over prompt lookup's, in pairs."""
    counts = {name: _counts(lines, name) for name in rows}
    for name, row in rows.items():
        arm = name.removesuffix(f"@{call}")
        others = {"blank": row_name(arm + BLANK, call), LOOKUP: row_name(LOOKUP, call)}
        for what, other in others.items():
            if row.role == "method" and other in rows and other != name:
                row.acceptance_ratios[what] = length_ratio(counts[name], counts[other])


def _counts(lines: Sequence[Line], method: str) -> np.ndarray:
    """Emitted tokens and target calls of every sample `[N, 2]`."""
    own = _in_order(lines, method)
    return np.array([(sum(x["stats"]["emitted"]), sum(x["stats"]["calls"])) for x in own], float)


def length_ratio(mine: np.ndarray, theirs: np.ndarray) -> Ratio:
    """Σ emitted / Σ calls of one row over that of another, `[N, 2]` each, resampled in pairs."""

    def ratio(index: np.ndarray) -> np.ndarray:
        a, b = mine[index].sum(-2), theirs[index].sum(-2)
        return np.asarray((a[..., 0] / a[..., 1]) / (b[..., 0] / b[..., 1]))

    value = float(ratio(np.arange(len(mine))))
    return Ratio(value, interval(ratio, len(mine)) if len(mine) >= FEWEST_PAIRS else None)


def _members(answers: Sequence[Line]) -> dict[str, Member]:
    """What every model of a row took for a question, mean."""
    costs: dict[str, list[dict[str, float]]] = {}
    for line in answers:
        for name, cost in line.get("members", {}).items():
            costs.setdefault(name, []).append(cost)
    return {
        name: Member(**{what: statistics.fmean(c[what] for c in many) for what in many[0]})
        for name, many in costs.items()
    }


def _choices(answers: Sequence[Line]) -> dict[str, Choice]:
    """What a compressor chose, by branch."""
    made: dict[str, list[dict[str, float]]] = {}
    for line in answers:
        if "choice" in line:
            made.setdefault(line["choice"]["branch"], []).append(line["choice"])
    return {
        branch: Choice(
            len(many),
            *(
                statistics.fmean(one[what] for one in many)
                for what in ("visual", "kept", "seconds")
            ),
        )
        for branch, many in made.items()
    }


def _same(mine: Sequence[Line], plain: Sequence[Line]) -> float:
    """Share of the texts that are the plain loop's."""
    texts = {line["index"]: line["text"] for line in plain}
    return statistics.fmean(float(line["text"] == texts[line["index"]]) for line in mine)


def _other_texts(rows: Mapping[str, MethodResult]) -> list[str]:
    """Said where a greedy text of an exact row or of a peer is not the plain loop's."""
    notes = []
    for name, row in rows.items():
        exact = row.contract.startswith("exact")
        if exact and row.same_output is not None and row.same_output < 1:
            count = round((1 - row.same_output) * row.n)
            notes.append(f"{name}: {count} of {row.n} greedy answers differ from plain decoding's")
    return notes
