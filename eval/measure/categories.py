"""Speed and acceptance by category of prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..run.samples import Line, output_tokens
from ..schema_parts import Category
from .bootstrap import FEWEST_PAIRS, Interval, quotient_interval, ratio_interval
from .counters import merged_stats
from .speed import per_token


def categories(
    lines: Sequence[Line], plain: Sequence[Line], tag: Callable[[int], str]
) -> dict[str, Category]:
    """Figures of a row by category, of its timed calls; empty if all prompts are of one.

    Args:
        lines: of the row, at batch 1.
        plain: of the baseline, on the same samples in the same order; the row's own for itself.
        tag: category of a sample.
    """
    pairs: dict[str, list[tuple[Line, Line]]] = {}
    for own, other in zip(lines, plain, strict=True):
        pairs.setdefault(tag(own["index"]), []).append((own, other))
    if len(pairs) < 2:
        return {}
    return {name: _category(found, lines is plain) for name, found in sorted(pairs.items())}


def _category(pairs: list[tuple[Line, Line]], baseline: bool) -> Category:
    own = [line for line, _ in pairs]
    total = merged_stats(own)
    seconds = sum(line["decode_seconds"] for line in own)
    shares = total.acceptance_by_position
    row = Category(
        n=len(own),
        mean_acceptance_length=total.mean_acceptance_length,
        acceptance_by_position=shares,
        tokens_per_second=sum(output_tokens(line["stats"]) for line in own) / seconds,
        mean_acceptance_length_ci95=_share_interval(own, "emitted", "calls"),
        acceptance_by_position_ci95=[
            _share_interval(own, "accepted_at", "judged_at", place) for place in range(len(shares))
        ],
    )
    if not baseline:
        ratios = [per_token(other) / per_token(line) for line, other in pairs]
        row.speedup_median, interval = ratio_interval(ratios)
        row.speedup_ci95 = interval if len(ratios) >= FEWEST_PAIRS else None
    return row


def _share_interval(
    lines: Sequence[Line], above: str, below: str, place: int | None = None
) -> Interval | None:
    """Interval of Σ above / Σ below, counters of the lines; of one draft position, or of all."""

    parts = slice(None) if place is None else slice(place, place + 1)
    top, bottom = ([sum(line["stats"][name][parts]) for line in lines] for name in (above, below))
    return quotient_interval(top, bottom)
