"""Coins that follow every branch: the exact law of whatever the shipped code does.

The code under test runs on a batch of identical rows. Each row follows its own script of outcomes;
where the script ends, the row takes the first possible outcome and the others become rows of the
next run. Nothing is sampled and nothing is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from itertools import compress
from typing import TypeVar

import torch
from torch import Tensor

from ..coins import RoundCoins

Outcome = TypeVar("Outcome", bound=Hashable)
Script = tuple[int, ...]
_FEW = 64  # weights that are looked at sooner than laid out


class EnumeratingCoins:
    """Coins for one run over a batch of scripts; both sides share one script."""

    def __init__(self, scripts: list[Script]) -> None:
        self._scripts = scripts
        self._taken: list[list[int]] = [[] for _ in scripts]
        self.probability = [1.0] * len(scripts)
        self.pending: list[Script] = []

    def followed(self) -> bool:
        """True if every row tossed as often as its script says."""
        pairs = zip(self._taken, self._scripts, strict=True)
        return all(len(taken) >= len(script) for taken, script in pairs)

    def taken(self, row: int) -> Script:
        """A row's outcomes so far: its script, and the first ones behind it."""
        return tuple(self._taken[row])

    def round(self, number: int) -> tuple[RoundCoins, RoundCoins]:
        return _Proposals(self), self

    def accept(self, prob: Tensor, lengths: Tensor) -> Tensor:
        stands: list[bool] = []
        for row, (probs, length) in enumerate(zip(prob.tolist(), lengths.tolist(), strict=True)):
            for n, p in enumerate(probs):
                if n < length:
                    stands.append(self._toss(row, min(max(0.0, p), 1.0)))  # 0 if it is no number
                else:
                    stands.append((row + n) % 2 == 0)  # must not matter, so let it vary
        return torch.tensor(stands, dtype=torch.bool).view(prob.shape)

    def draw(self, weights: Tensor, index: int | Tensor = 0) -> Tensor:
        shape, vocab_size = weights.shape[:-1], weights.shape[-1]
        if weights.numel() <= _FEW:
            few = weights.reshape(len(weights), -1, vocab_size).double().tolist()
            return torch.tensor(self._one_by_one(few)).view(shape)
        if weights.stride(0) == 0:
            weights = weights[:1]  # one law for all rows
        some = (weights != 0).flatten(0, -2).any(0)
        some[-1] = True  # drawn where there are no numbers
        ids = some.nonzero().squeeze(1)  # nobody draws the others: no need to look at them
        laws = weights[..., ids].reshape(len(weights), -1, len(ids)).double()
        totals = laws.sum(-1)
        if (laws >= 0).all() and ((totals > 0) & totals.isfinite()).all():
            drawn = self._follow(laws, totals, ids)
        else:
            drawn = self._one_by_one(laws.expand(shape[0], -1, -1).tolist(), ids.tolist())
        return torch.tensor(drawn).view(shape)

    def normal(self, shape: tuple[int, ...], index: int = 0) -> Tensor:
        raise TypeError("normal noise has no finite enumeration; use quadrature")

    def noise(self, positions: Tensor, count: int) -> Tensor:
        raise TypeError("normal noise has no finite enumeration; use quadrature")

    def exponential(self, positions: Tensor, count: int) -> Tensor:
        raise TypeError("exponential noise has no finite enumeration")

    def _toss(self, row: int, p: float) -> bool:
        """True with chance `p`."""
        taken, script = self._taken[row], self._scripts[row]
        if len(taken) < len(script):
            stands = bool(script[len(taken)])
        else:
            stands = p >= 1
            if 0 < p < 1:
                self.pending.append((*taken, 1))
        taken.append(int(stands))
        self.probability[row] *= p if stands else 1 - p
        return stands

    def _follow(self, laws: Tensor, totals: Tensor, ids: Tensor) -> list[list[int]]:
        """What `_choose` chooses, for rows that mostly follow their scripts.

        Args:
            laws: weights `[R, M, K]` of the `ids [K]`, none of them negative, and their `totals`
                `[R, M]`; of a single row, where all have the same.
        """
        count, own = laws.shape[1], list(zip(self._taken, self._scripts, strict=True))
        told = torch.tensor(  # -1 where a script has ended
            [(script[len(taken) :][:count] + (-1,) * count)[:count] for taken, script in own],
            dtype=torch.long,
        ).view(len(own), count)
        first = (laws > 0).int().argmax(-1)
        place = torch.where(told < 0, first, torch.searchsorted(ids, told).clamp(max=len(ids) - 1))
        chosen = torch.where(told < 0, ids[place], told)
        chance = laws.expand(len(own), -1, -1).gather(-1, place[..., None])[..., 0] / totals
        chance[ids[place] != chosen] = 0
        names, found = ids.tolist(), chosen.tolist()
        ends = [row for row, (*_, last) in enumerate(told.tolist()) if last < 0]
        looked = ends if len(laws) > 1 else [0]
        possible = dict(zip(looked, (laws[looked] > 0).tolist(), strict=True))
        for row, (choices, chances) in enumerate(zip(found, chance.tolist(), strict=True)):
            taken, script = own[row]
            for n, (choice, p) in enumerate(zip(choices, chances, strict=True)):
                if len(taken) >= len(script):
                    _, *others = compress(names, possible[row if len(laws) > 1 else 0][n])
                    self.pending += [(*taken, other) for other in others]
                taken.append(choice)
                self.probability[row] *= p
        return found

    def _one_by_one(
        self, weights: list[list[list[float]]], ids: Sequence[int] = ()
    ) -> list[list[int]]:
        """What every row chooses for every node."""
        return [[self._choose(row, w, ids) for w in own] for row, own in enumerate(weights)]

    def _choose(self, row: int, weights: list[float], ids: Sequence[int] = ()) -> int:
        """Choose an id (else 0, 1, …) in proportion to its weight; a script is made of ids."""
        ids = ids or range(len(weights))
        total = sum(weights)
        possible = {i: w for i, w in zip(ids, weights, strict=True) if w > 0}
        if total != total:  # no numbers: the last id, as the shipped coins say
            return ids[-1]
        if not possible:
            raise ValueError("all weights are zero")
        taken, script = self._taken[row], self._scripts[row]
        if len(taken) < len(script):
            choice = script[len(taken)]
        else:
            choice, *others = possible
            self.pending += [(*taken, other) for other in others]
        taken.append(choice)
        self.probability[row] *= possible.get(choice, 0.0) / total
        return choice


class _Proposals(EnumeratingCoins):
    """The same coins for a drafter, which may draw by what is no law, as the shipped coins do.

    What is drawn then is the last id. The node must not count, or the law that is found is off.
    """

    def __init__(self, coins: EnumeratingCoins) -> None:
        self.__dict__ = coins.__dict__

    def _choose(self, row: int, weights: list[float], ids: Sequence[int] = ()) -> int:
        law = all(0 <= w < math.inf for w in weights) and any(weights)
        return super()._choose(row, weights, ids) if law else (ids or range(len(weights)))[-1]


def enumerate_law(
    run: Callable[[EnumeratingCoins, int], list[Outcome]], at_once: int = 4096
) -> dict[Outcome, float]:
    """The exact law of `run`'s outcome.

    Args:
        run: takes coins and a number of rows, runs the code on that many identical rows and
            returns the outcome of each.
        at_once: most rows in one run.
    """
    law: dict[Outcome, float] = {}
    pending: list[Script] = [()]
    while pending:
        scripts, pending = pending[:at_once], pending[at_once:]
        coins = EnumeratingCoins(scripts)
        outcomes = run(coins, len(scripts))
        if not coins.followed():
            raise RuntimeError("a row's coins depend on its neighbours: enumerate with at_once=1")
        for outcome, probability in zip(outcomes, coins.probability, strict=True):
            law[outcome] = law.get(outcome, 0.0) + probability
        pending += coins.pending
    return law
