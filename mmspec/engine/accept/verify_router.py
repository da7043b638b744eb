"""Routers of masked blocks: is it worth a call of the target to verify the next places?

Han et al. 2026, "S2D2: Fast Decoding for Diffusion LLMs via Training-Free Self-Speculation", and
its released code. A block-diffusion model has filled a block in a call. A router looks at how sure
it was, and says whether the first run of masked places is verified, or places are filled by
confidence alone. Each row has a state of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Literal

MARGIN = 0.05  # of the best token's probability over the second's, from where on a token is sure
BINS = 2  # of each of the three numbers that tell contexts apart

Estimate = Literal["entropy", "margin"]
Score = Literal["static", "dynamic"]


@dataclass(frozen=True)
class BlockView:
    """View of a row's block that a router goes by.

    Attributes:
        entropies: of the laws in the first run of masked places, over ln V: 0 to 1.
        margins: best probability less the second best there.
        confident: masked places of the whole block that are surer than the filling threshold.
        filled: places of the block that are filled, or emitted.
        size: places of the block.
    """

    entropies: Sequence[float]
    margins: Sequence[float]
    confident: int
    filled: int
    size: int


class VerifyRouter:
    """Base of the routers; as it is, it always verifies."""

    @property
    def always(self) -> bool:
        """True if every place is verified."""
        return type(self) is VerifyRouter

    def start(self, rows: int) -> None:
        """Forget everything; a new batch begins."""
        return

    def seat(self, rows: Sequence[int]) -> None:
        """Forget what these rows held."""
        return

    def verifies(self, row: int, view: BlockView) -> bool:
        """True if the first run of masked places is to be verified."""
        return True

    def learn(self, row: int, decoded: int) -> None:
        """Learn how many places the row's last decision has decoded."""
        return


class NeverRouter(VerifyRouter):
    """Never verifies: the model's own decoding by a confidence threshold."""

    def verifies(self, row: int, view: BlockView) -> bool:
        return False


class SpanRouter(VerifyRouter):
    """Verifies runs of at least `least` places."""

    def __init__(self, least: int) -> None:
        self.least = least

    def verifies(self, row: int, view: BlockView) -> bool:
        return len(view.entropies) >= self.least


class ScoreRouter(VerifyRouter):
    """Verifies where E[K] − c, or E[K] − c · (confident places), reaches a threshold τ.

    E[K] = Σ_k Π_{i ≤ k} α_i is the number of places that should stand. α_i is exp(−β H_i / ln V) by
    the law's entropy, or 1 where the best token leads by more than `MARGIN`, else 0.

    Args:
        estimate: of α.
        score: what is taken off: c ("static"), or c for each confident place ("dynamic").
        cost: c.
        beta: β.
        threshold: τ.
    """

    def __init__(
        self, estimate: Estimate, score: Score, cost: float, beta: float, threshold: float
    ) -> None:
        self.estimate, self.dynamic = estimate, score == "dynamic"
        self.cost, self.beta, self.threshold = cost, beta, threshold

    def score(self, view: BlockView) -> float:
        """The score of a block."""
        if self.estimate == "margin":
            alphas = [float(margin > MARGIN) for margin in view.margins]
        else:
            alphas = [math.exp(-self.beta * entropy) for entropy in view.entropies]
        expected = sum(accumulate(alphas, mul))
        return expected - self.cost * (view.confident if self.dynamic else 1)

    def verifies(self, row: int, view: BlockView) -> bool:
        return self.score(view) >= self.threshold


class HysteresisRouter(ScoreRouter):
    """Begins to verify where the score reaches `on`, and ceases where it falls below `off`.

    Args:
        estimate, score, cost, beta: see `ScoreRouter`.
        on, off: the two thresholds.
    """

    def __init__(
        self, estimate: Estimate, score: Score, cost: float, beta: float, on: float, off: float
    ) -> None:
        super().__init__(estimate, score, cost, beta, on)
        self.off = off
        self._on: list[bool] = []

    def start(self, rows: int) -> None:
        self._on = [False] * rows

    def seat(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._on[row] = False

    def verifies(self, row: int, view: BlockView) -> bool:
        self._on[row] = self.score(view) >= (self.off if self._on[row] else self.threshold)
        return self._on[row]


class UcbRouter(VerifyRouter):
    """A contextual bandit: does what has decoded most places a call, of what it is unsure of more.

    There are 2 × 2 × 2 contexts: a short or long run, a block in its first or second half, and
    entropies below or above one half. Both actions are tried in each; from then on a decision is
    the action a with the larger mean reward + explores · √(ln t / n_a), ties to verifying. The
    reward is the number of decoded places over the calls: two where the target verifies, else one.

    Args:
        explores: weight of what is unsure.
    """

    def __init__(self, explores: float) -> None:
        self.explores = explores
        self._tried: list[dict[tuple[int, bool], tuple[int, float]]] = []
        self._time: list[int] = []
        self._last: list[tuple[int, bool]] = []

    def start(self, rows: int) -> None:
        self._tried, self._time = [{} for _ in range(rows)], [0] * rows
        self._last = [(0, True)] * rows

    def seat(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._tried[row], self._time[row] = {}, 0

    def verifies(self, row: int, view: BlockView) -> bool:
        self._time[row] += 1
        context = context_of(view)
        value = {action: self._value(row, (context, action)) for action in (True, False)}
        action = value[True] >= value[False]
        self._last[row] = context, action
        return action

    def _value(self, row: int, key: tuple[int, bool]) -> float:
        tried, total = self._tried[row].get(key, (0, 0.0))
        if not tried:
            return math.inf
        return total / tried + self.explores * math.sqrt(math.log(self._time[row]) / tried)

    def learn(self, row: int, decoded: int) -> None:
        key = self._last[row]
        tried, total = self._tried[row].get(key, (0, 0.0))
        self._tried[row][key] = tried + 1, total + decoded / (1 + key[1])


def context_of(view: BlockView) -> int:
    """Number of a block's context, from 0 to 7."""
    run = (len(view.entropies) - 1) / max(1, view.size - 1)
    usual = sum(view.entropies) / max(1, len(view.entropies))
    number = 0
    for value in (run, view.filled / view.size, usual):
        number = number * BINS + min(BINS - 1, int(value * BINS))
    return number


Policy = Literal["score", "hysteresis", "span", "ucb", "always", "never"]


def make_router(
    policy: Policy,
    estimate: Estimate,
    score: Score,
    cost: float,
    beta: float,
    threshold: float,
    on: float,
    off: float,
    least: int,
    explores: float,
) -> VerifyRouter:
    """The router of a policy; each goes by those of the numbers that it has."""
    scored = estimate, score, cost, beta
    if policy == "score":
        return ScoreRouter(*scored, threshold)
    if policy == "hysteresis":
        return HysteresisRouter(*scored, on, off)
    if policy == "span":
        return SpanRouter(least)
    if policy == "ucb":
        return UcbRouter(explores)
    return VerifyRouter() if policy == "always" else NeverRouter()
