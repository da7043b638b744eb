"""Lengths by load, of every row its own (FASER, Chen et al. 2026)."""

from __future__ import annotations

import math

import numpy as np

from ..draft import Context, Draft, Verdict
from .goodput import PATIENCE, Experience, GoodputLength
from .ledger import HICCUP
from .round_costs import Floats, RoundCosts


class FaserLength(GoodputLength):
    """`GoodputLength` whose rows draft differently far, as the load of the round allows.

    Of lengths s it takes those with most expected tokens of all rows over seconds of the round:

        Σ_b E_b(s_b) / T(B, max_b s_b, Σ_b (1 + s_b)),

    where B rows still run, and E_b is what row b's own drafts have shown. T is at first the
    profile, as measured, of rounds whose longest draft has so many tokens. Rounds at every load
    correct it, see `RoundCosts`, and what is taken is its lower bound: a load of which little is
    known is tried as if it were cheap (GP-LCB). So of devices that wait for the longest draft
    alone, rows draft alike; where every token costs, unlucky rows leave their share to others.

    The paper's search knows a share of the processor as a further input, and its priors and kernel
    are not published; these are ours. A row that drafts nothing tries one token after a number of
    rounds that doubles with every failure.

    Args:
        experience, news: see `GoodputLength`; with `news` of 0 the profile alone counts.
    """

    def __init__(self, experience: Experience, news: float = 0.2) -> None:
        super().__init__(experience, news)
        self._waits: list[tuple[int, int]] = []  # of rows: rounds without drafts, and those borne

    def start(self, rows: int) -> None:
        super().start(rows)
        self._waits = [(0, PATIENCE)] * rows

    def seat(self, context: Context, rows: list[int]) -> None:
        super().seat(context, rows)
        for row in rows:
            self._waits[row] = 0, PATIENCE

    @property
    def costs(self) -> RoundCosts:
        """Beliefs about seconds of rounds, as of now."""
        return RoundCosts(self.experience.seconds, self.experience.loads)

    def budget(self) -> list[int]:
        lengths, running = [0] * len(self._rows), [n for n, x in enumerate(self._over) if not x]
        if not running:
            return lengths
        expected = [self._rows[row].expected() for row in running]
        best = best_lengths(np.array(expected), self.costs)
        for row, length in zip(running, best, strict=True):
            idle, borne = self._waits[row]
            idle = 0 if length else idle + 1
            self._waits[row] = idle, borne
            lengths[row] = length or int(idle > borne and self.most > 0)
        return lengths

    def observe(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        told = [*zip(self._over, context.reached, context.accepted, strict=True)]
        for row, (_, drafted, kept) in enumerate(told):
            idle, borne = self._waits[row]
            if idle and drafted:
                self._waits[row] = 0, PATIENCE if kept else 2 * borne
        levels, running = draft.levels, [drafted for over, drafted, _ in told if not over]
        if context.seconds and self.news and running and levels <= self.most:
            load = len(running), levels, len(running) + sum(running)
            surprise = math.log(context.seconds / self.seconds[levels])
            surprise = min(max(surprise, -math.log(HICCUP)), math.log(HICCUP))
            self.costs.learn(load, surprise, self.news)
        self._learn(context)


def best_lengths(expected: Floats, costs: RoundCosts) -> list[int]:
    """Lengths of most tokens over the lower bound of a round's seconds.

    Of so many tokens, none further ahead than a level, the likeliest stand most often; they are
    the first ones of every row. So for every level and number of tokens one choice is tried. A
    round with a level more is not thought to be shorter, whatever its bound says.

    Args:
        expected: tokens `[B, 1 + most]` of a round in which a row drafts 0, 1, 2, …
        costs: of rounds.
    """
    rows, most = len(expected), expected.shape[1] - 1
    reach = np.diff(expected, axis=1)
    levels, tokens = np.arange(most + 1)[:, None], np.arange(rows * most + 1)[None]
    real = (tokens >= levels) & (tokens <= rows * levels)
    level, count = real.nonzero()
    bound, gain = np.full(real.shape, -np.inf), np.zeros(real.shape)
    bound[real] = costs.lower(np.stack([np.full_like(level, rows), level, rows + count], 1))
    bound = np.maximum.accumulate(bound)
    for n in range(1, most + 1):
        ordered = np.sort(reach[:, :n], axis=None)[::-1]
        gain[n, 1 : 1 + rows * n] = ordered.cumsum()
    rates = np.log(rows + gain) - bound
    rates[~real] = -np.inf
    deepest, chosen = divmod(int(rates.argmax()), rows * most + 1)
    first = np.argsort(-reach[:, :deepest], axis=None, kind="stable")[:chosen]
    row = first // max(1, deepest)
    return [int(n) for n in np.bincount(row, minlength=rows)]
