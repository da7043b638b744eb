"""The counters of pipeline calls, from their lines in a run's log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...engine.stats import SpecStats
from ...pipelines.continuous.stats import ContinuousStats
from ...pipelines.video.stats import VideoStats
from ..run.samples import Line
from ..schema import MethodResult


def read_stats(counters: dict[str, Any]) -> SpecStats:
    """Counters of the class that wrote them."""
    if "pictures" in counters:
        return ContinuousStats(**counters)
    return (VideoStats if "made_by" in counters else SpecStats)(**counters)


def merged_stats(lines: Sequence[Line]) -> SpecStats:
    """The counters of several calls as one."""
    first, *others = (read_stats(line["stats"]) for line in lines)
    return first.merged(others)


def samples_of(total: SpecStats) -> int:
    """Outputs that counters are of."""
    return total.pictures if isinstance(total, ContinuousStats) else len(total.calls)


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
    """Mean seconds per output and phase; of blocks of video, whose phases have parts, by part."""
    seconds = dict(sorted(total.seconds.items()))
    if isinstance(total, VideoStats):
        seconds = {"encode": seconds.get("encode", 0.0), **total.parts}
    return {name: spent / samples_of(total) for name, spent in seconds.items()}


def count_sibling(row: MethodResult, total: SpecStats) -> None:
    """Calls of the sibling a sample, where there is one."""
    if total.sibling_calls:
        row.sibling_calls_per_sample = sum(total.sibling_calls) / len(total.sibling_calls)


def network_calls(total: SpecStats) -> dict[str, float]:
    """Calls of backbone and head a picture, by a row's fields; of other tokens none.

    `total` is of pictures that were drawn alone: those of a batch share their calls.
    """
    if not isinstance(total, ContinuousStats):
        return {}
    names = (
        *("head_calls", "head_rows", "backbone_calls"),
        *("drafter_head_calls", "drafter_backbone_calls"),
    )
    return {f"{name}_per_sample": getattr(total, name) / total.pictures for name in names}
