"""Fields of a report's row that only answers have: ratios, choices, members, equal texts."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ...measure.bootstrap import FEWEST_PAIRS, interval, ratio_interval
from ...measure.speed import per_token
from ...run.job import Job
from ...run.samples import Line, SampleLog
from ...schema import MethodResult
from ...schema_parts import Choice, Member, Ratio
from ...variants import row_name
from .variants import BLANK, role_of

LOOKUP, TRANSFORMERS = "prompt-lookup", "transformers:plain"


def complete_rows(job: Job, log: SampleLog, rows: Mapping[str, MethodResult]) -> list[str]:
    """Fill in rows of one way to call, the baseline's first; returns what a reader must know."""
    timed, answers = ({n: _in_order(log, kind, n) for n in rows} for kind in ("speed", "quality"))
    plain = {line["index"]: line["text"] for line in answers[next(iter(rows))]}
    for name, row in rows.items():
        own, row.role = answers[name], role_of(name) or row.role
        members = (cost for line in own for cost in line.get("members", {}).items())
        row.members = {n: Member(**means) for n, (_, means) in _means(members).items()}
        told = (dict(line["choice"]) for line in own if "choice" in line)
        choices = ((one.pop("branch"), one) for one in told)
        row.choices = {n: Choice(count, **means) for n, (count, means) in _means(choices).items()}
        if not job.calls[row.call].get("temperature", 0.0):  # no chance: answers should be alike
            row.same_output = statistics.fmean(x["text"] == plain[x["index"]] for x in own)
        if row.role in ("baseline", "method"):
            row.over_transformers = _over(timed.get(row_name(TRANSFORMERS, row.call)), timed[name])
        if row.role == "method" and timed[name]:
            variant = name.removesuffix(f"@{row.call}")
            others = {"blank": variant + BLANK, LOOKUP: LOOKUP}
            for what, other in ((w, row_name(o, row.call)) for w, o in others.items()):
                if other in rows and other != name:
                    ratio = length_ratio(*(_counts(timed[n]) for n in (name, other)))
                    row.acceptance_ratios[what] = ratio
    return [
        f"{name}: {round((1 - row.same_output) * row.n)} of {row.n} greedy answers differ from "
        "plain decoding's"
        for name, row in rows.items()
        if row.contract.startswith("exact") and row.same_output is not None and row.same_output < 1
    ]


def length_ratio(mine: np.ndarray, theirs: np.ndarray) -> Ratio:
    """Σ emitted / Σ calls of one row over that of another, `[N, 2]` each, resampled in pairs."""

    def ratio(index: np.ndarray) -> np.ndarray:
        a, b = mine[index].sum(-2), theirs[index].sum(-2)
        return np.asarray((a[..., 0] / a[..., 1]) / (b[..., 0] / b[..., 1]))

    value = float(ratio(np.arange(len(mine))))
    return Ratio(value, interval(ratio, len(mine)) if len(mine) >= FEWEST_PAIRS else None)


def _over(peer: Sequence[Line] | None, lines: Sequence[Line]) -> Ratio | None:
    """A peer's seconds a token over a row's, of samples alone; None: one has not all of them."""
    theirs, mine = ([x for x in every if x["batch"] == 1] for every in (peer or (), lines))
    if not mine or len(theirs) != len(mine):
        return None
    pairs = zip(theirs, mine, strict=True)
    value, spread = ratio_interval([per_token(slow) / per_token(fast) for slow, fast in pairs])
    return Ratio(value, spread if len(mine) >= FEWEST_PAIRS else None)


def _in_order(log: SampleLog, kind: str, method: str) -> list[Line]:
    own = [line for line in log.of(kind) if line["method"] == method]
    return sorted(own, key=lambda line: int(line["index"]))


def _counts(lines: Sequence[Line]) -> np.ndarray:
    """Emitted tokens and target calls of every sample `[N, 2]`."""
    return np.array([[sum(x["stats"][n]) for n in ("emitted", "calls")] for x in lines], float)


def _means(
    told: Iterable[tuple[str, Mapping[str, float]]],
) -> dict[str, tuple[int, dict[str, float]]]:
    """By name how often it was told of, and the means of its figures."""
    found: dict[str, list[Mapping[str, float]]] = {}
    for name, figures in told:
        found.setdefault(name, []).append(figures)
    return {
        name: (len(many), {n: statistics.fmean(one[n] for one in many) for n in many[0]})
        for name, many in found.items()
    }
