"""Two ways to route blocks compared where both leave as many to the drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..schema_parts import EqualShare
from .bootstrap import known_interval

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Routed:
    """A row's clips, those of all rows in the same order.

    Attributes:
        shares: of each clip `[n]`, the share of its blocks that are the drafter's, or of the
            layers that were reused.
        scores: of each clip `[n]`.
    """

    name: str
    shares: Array
    scores: Array


def at_equal_share(mine: Routed, others: Sequence[Routed]) -> EqualShare | None:
    """A row's mean score less that of another way to route at the same mean drafted share.

    The other way has a few rows, none of which drafts just as much. A mixture of two of them does:
    of all clips, w are made as in the row b that drafts more, the others as in the row a that
    drafts less, w = (S − S_a) / (S_b − S_a) for mean shares S. It is a way to route that anybody
    could run, its expected share is S and its expected score (1 − w) Q_a + w Q_b: nothing is
    assumed of what lies between the rows. A row that drafts more than all others is mixed itself,
    with the one that drafts least, until it drafts as much as the one that drafts most. Clips are
    resampled, all rows' together, and w is found anew in each resample, so the interval holds what
    the shares vary by.

    Args:
        others: rows of one way to route; plain, which drafts nothing, is one of any way.

    Returns:
        None where the row drafts nothing, or no more than all others, or these draft nothing.
    """
    rungs = sorted(others, key=_share)
    above = next((i for i, rung in enumerate(rungs) if _share(rung) >= _share(mine)), None)
    if above is None:
        if _share(rungs[-1]) == _share(rungs[0]):
            return None
        return _mixed(rungs[0], mine, rungs[-1], -1, against=rungs[-1].name)
    if not _share(mine) or not above:  # nothing drafts less
        return None
    return _mixed(rungs[above - 1], rungs[above], mine, 1)


def _mixed(
    low: Routed, high: Routed, level: Routed, sign: int, against: str | None = None
) -> EqualShare:
    """A row less the mixture of two that drafts as much, times `sign`."""

    def weight(picked: Array) -> Array:
        bottom, own, top = (r.shares[picked].mean(-1) for r in (low, level, high))
        return np.asarray((own - bottom) / (top - bottom))

    def gain(picked: Array) -> Array:
        w = weight(picked)
        bottom, own, top = (r.scores[picked].mean(-1) for r in (low, level, high))
        return np.asarray(sign * (own - (1 - w) * bottom - w * top))

    every = np.arange(len(level.scores))
    return EqualShare(
        value=float(gain(every)),
        ci95=known_interval(gain, len(level.scores)),
        rows=[low.name, high.name],
        weight=float(weight(every)),
        against=against,
    )


def _share(of: Routed) -> float:
    return float(of.shares.mean())
