"""The target drafts for itself with some of its layers: early exit and layer skipping.

Kangaroo (Liu et al. 2024) leaves after a fixed layer, DEL (Zarch et al. 2025) chooses layer and
length as it runs, SWIFT (Xia et al. 2024) skips layers in between and searches for the best set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..engine.coins import RoundCoins
from ..engine.draft import Context, Draft, Scores, Verdict
from ..models.running_rows import LayersOfRows
from .sound_laws import chain_of_laws

_PRIOR, _WEIGHT = 0.8, 2.0  # what is hoped of an untried set, and how many tokens that outweighs
_DECAY = 0.98  # of what was seen, per round
_SEARCH = 12  # rounds between two new sets of layers


class LayeredModel(Protocol):
    """The target's own network, over the target's own cache."""

    @property
    def layers(self) -> int:
        """Number of layers."""

    def extend(
        self, tokens: Tensor, start: list[int], draft: Draft | None = None, use: LayersOfRows = None
    ) -> Tensor:
        """Extend the rows as `TokenModel.extend` does; row b runs the layers `use[b]` alone."""


class SelfDrafter:
    """Drafts with a part of the target's layers, its last norm and its head.

    The cache is the target's: what it committed is there for every layer, so the part can change
    from round to round, and the entries of drafted tokens are overwritten when the target scores
    them. Every row learns how often tokens of each set of layers stand, and takes the set and the
    length with the most expected tokens per layer run (DEL's measure),

        (1 + a + … + a^γ) / (γ k / L + 1),  k of L layers, a the share of tokens that stand.

    Args:
        model: the target's network.
        sets: layers to choose from; with one set there is nothing to choose but the length.
        search: now and then replace the worst set by a change of the best (SWIFT).

    Attributes:
        share: passes of the whole network that the drafting so far amounts to, by layers.
    """

    def __init__(
        self, model: LayeredModel, sets: Sequence[Sequence[int]], search: bool = False
    ) -> None:
        self.model, self.search = model, search
        self.sets = [tuple(layers) for layers in sets]
        self.share = 0.0
        self._rows: list[_RowSearch] = []

    def start(self, context: Context) -> None:
        self.share = 0.0
        self._rows = [_RowSearch(self.sets, self.model.layers) for _ in range(context.rows)]

    def seat(self, context: Context, rows: list[int]) -> None:
        for row in rows:
            self._rows[row] = _RowSearch(self.sets, self.model.layers)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        for row, most in zip(self._rows, budget, strict=True):
            row.choose(most)
        lengths = [row.length for row in self._rows]
        use = [row.layers if row.length else () for row in self._rows]
        device = context.tokens.device
        inputs, start = context.last, [b - 1 for b in context.base]
        tokens, laws = [], []
        for n in range(max(lengths)):
            laws.append(self.model.extend(inputs, start, use=use)[:, -1])
            tokens.append(coins.draw(laws[-1], n))
            inputs, start = tokens[-1][:, None], [s + 1 for s in start]
            self.share += len(set().union(*use)) / self.model.layers
        real = torch.tensor(lengths, device=device)
        return chain_of_laws(context, tokens, laws, real)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        told = zip(self._rows, context.reached, context.accepted, strict=True)
        for number, (row, drafted, kept) in enumerate(told):
            if drafted:
                row.learn(kept)
            seen = context.own_round(number)
            if self.search and seen % _SEARCH == 0:
                row.search(seen // _SEARCH)


class _RowSearch:
    """Record of one row: what it has seen of every set of layers."""

    def __init__(self, sets: list[tuple[int, ...]], layers: int) -> None:
        self.sets, self.total = list(sets), layers
        self.stood = [_PRIOR * _WEIGHT] * len(sets)
        self.judged = [_WEIGHT] * len(sets)
        self.chosen, self.length = 0, 0

    @property
    def layers(self) -> tuple[int, ...]:
        return self.sets[self.chosen]

    def choose(self, most: int) -> None:
        """The best set and length of at most `most`; 0 only if there is no room."""
        best = -1.0
        self.length = 0
        for n in range(len(self.sets)):
            value, length = self._best(n, most)
            if length and value > best:
                best, self.chosen, self.length = value, n, length

    def _best(self, n: int, most: int) -> tuple[float, int]:
        """Most expected tokens per layer with set n, and at which length."""
        stands, part = self.stood[n] / self.judged[n], len(self.sets[n]) / self.total
        value, length, tokens, reach = 0.0, 0, 1.0, 1.0
        for gamma in range(1, most + 1):
            reach *= stands
            tokens += reach
            if tokens / (gamma * part + 1) > value:
                value, length = tokens / (gamma * part + 1), gamma
        return value, length

    def learn(self, kept: int) -> None:
        judged, n = min(kept + 1, self.length), self.chosen
        self.stood[n] = _DECAY * self.stood[n] + min(kept, self.length)
        self.judged[n] = _DECAY * self.judged[n] + judged

    def search(self, number: int) -> None:
        """Put a change of the best set in the place of the worst.

        The change depends on `number` alone, so that rows don't depend on their neighbours.
        """
        values = [self._best(n, 4)[0] for n in range(len(self.sets))]
        best, worst = int(np.argmax(values)), int(np.argmin(values))
        on = np.zeros(self.total, dtype=bool)
        on[list(self.sets[best])] = True
        rng = np.random.default_rng(number)
        on[rng.integers(self.total)] ^= True
        if rng.random() < 0.5:  # and another: two changes can keep the number of layers
            on[rng.integers(self.total)] ^= True
        changed = tuple(int(layer) for layer in np.flatnonzero(on))
        if not changed or changed in self.sets or best == worst:
            return
        self.sets[worst] = changed
        self.stood[worst], self.judged[worst] = _PRIOR * _WEIGHT, _WEIGHT


def early_exit(target: LayeredModel, exit_layer: int | None = None) -> SelfDrafter:
    """The drafter that leaves after some layers; None: it finds out after how many."""
    return SelfDrafter(target, exits(target.layers, exit_layer))


def layer_skip(target: LayeredModel) -> SelfDrafter:
    """The drafter that leaves out layers in between, and searches for those it needs least."""
    return SelfDrafter(target, spread(target.layers), search=True)


def exits(layers: int, at: int | None = None) -> list[tuple[int, ...]]:
    """The first layers up to every exit but the last, or up to the one after `at` layers."""
    return [tuple(range(n)) for n in ([at] if at else range(1, layers))]


def spread(layers: int) -> list[tuple[int, ...]]:
    """Sets of 2, 3, … layers, spread evenly from the first to the last."""
    sets = [
        tuple(int(n) for n in np.linspace(0, layers - 1, count).round())
        for count in range(2, layers)
    ]
    return sets or [(0,)]
