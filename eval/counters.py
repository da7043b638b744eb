"""The counters of pipeline calls, from their lines in a run's log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..engine.stats import SpecStats
from ..pipelines.continuous_stats import ContinuousStats
from .run.samples import Line
from .schema import MethodResult


def read_stats(counters: dict[str, Any]) -> SpecStats:
    """Counters of the class that wrote them."""
    return (ContinuousStats if "pictures" in counters else SpecStats)(**counters)


def merged_stats(lines: Sequence[Line]) -> SpecStats:
    """The counters of several calls as one."""
    first, *others = (read_stats(line["stats"]) for line in lines)
    return first.merged(others)


def samples_of(total: SpecStats) -> int:
    """Outputs that counters are of."""
    return total.pictures if isinstance(total, ContinuousStats) else len(total.calls)


def count_networks(row: MethodResult, total: SpecStats) -> None:
    """Calls of backbone and head a picture, where `total` is of pictures that were drawn alone."""
    if not isinstance(total, ContinuousStats):
        return
    for name in (
        *("head_calls", "head_rows", "backbone_calls"),
        *("drafter_head_calls", "drafter_backbone_calls"),
    ):
        setattr(row, f"{name}_per_sample", getattr(total, name) / total.pictures)
