"""The counters of pipeline calls, from their lines in a run's log, and what a row says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from ...engine.stats import SpecStats
from ...pipelines.continuous.stats import ContinuousStats
from ...pipelines.output import ImageStats, VlmStats
from ...pipelines.video.stats import VideoStats
from ..run.samples import Line
from ..schema import MethodResult

# of modalities that count more than tokens
KINDS = (ContinuousStats, VideoStats, VlmStats, ImageStats)
_CORE = {f.name for f in fields(SpecStats)}


def merged_stats(lines: Sequence[Line]) -> SpecStats:
    """The counters of several calls as one, of the class that counted something of its own."""
    counted: list[dict[str, Any]] = [line["stats"] for line in lines]
    told = {name for counters in counted for name, value in counters.items() if value}
    kinds = (kind for kind in KINDS if told & ({f.name for f in fields(kind)} - _CORE))
    kind = next(kinds, SpecStats)
    known = {f.name for f in fields(kind)}  # earlier versions told every modality's
    told_of = [{n: c[n] for n in c.keys() & known} for c in counted]
    for counters in told_of:
        if counters.get("inner"):
            inner: dict[str, Any] = counters["inner"]
            counters["inner"] = SpecStats(**{name: inner[name] for name in inner.keys() & _CORE})
    first, *others = (kind(**counters) for counters in told_of)
    return first.merged(others)


def counted_row(total: SpecStats, n: int, shared: bool) -> MethodResult:
    """The row of `n` samples as far as counters tell; `shared`: see `SpecStats.per_sample`."""
    return MethodResult(
        contract=total.contract,
        n=n,
        mean_acceptance_length=total.mean_acceptance_length,
        acceptance_by_position=total.acceptance_by_position,
        accepted_lengths=accepted_lengths(total),
        phase_seconds=phase_seconds(total),
        **total.per_sample(shared),  # type: ignore[arg-type]
    )


def accepted_lengths(total: SpecStats) -> list[float]:
    """Share of the drafts of which exactly 0, 1, 2 … tokens stood; nothing was drafted: none.

    With J the drafts that were judged and A(i) those whose first i tokens stood, it is
    (A(k) − A(k + 1)) / J, A(0) = J.
    """
    stood = [*total.judged_at[:1], *total.accepted_at]
    if not stood or not stood[0]:
        return []
    drafts = stood[0]
    while len(stood) > 1 and not stood[-1]:
        stood.pop()
    return [(here - there) / drafts for here, there in zip(stood, [*stood[1:], 0], strict=True)]


def phase_seconds(total: SpecStats) -> dict[str, float]:
    """Mean seconds per output, by what they went to."""
    return {name: spent / total.samples for name, spent in total.phases.items()}
