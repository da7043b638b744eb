"""Coins for laws of vectors: normal numbers run over nodes, choices over all branches.

Each batch row is a node of a quadrature rule; what `normal` gives it comes from the node. Choices
are followed as in `enumerate`, the same branch for every row, and rows carry their probabilities.
So the mean of anything that the shipped code puts out is a weighted sum over rows and branches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ..coins import RoundCoins

Outcome = TypeVar("Outcome")
Script = tuple[int, ...]


class QuadratureCoins:
    """Coins for one run over all nodes and one script of choices; both sides share it.

    Args:
        script: choices to take; behind its end the first that is possible for any row.
        normals: for every call of `normal`, the numbers `[R, k]` that it gives; further calls, and
            those behind a cut, get zeros.
        most: choices to follow; later ones are the first of their options, see `cut`.

    Attributes:
        probability: of the choices so far, per row `[R]`.
        cut: whether there were more choices than `most`.
        pending: scripts of the branches that were not taken.
    """

    def __init__(self, script: Script, normals: Sequence[Tensor], most: int = 64) -> None:
        self._script, self._normals, self._most = script, list(normals), most
        self.taken: list[int] = []
        self.probability = torch.ones(len(normals[0]), dtype=torch.float64)
        self.cut = False
        self.pending: list[Script] = []

    def round(self, number: int) -> tuple[RoundCoins, RoundCoins]:
        return self, self

    def accept(self, prob: Tensor, lengths: Tensor) -> Tensor:
        out = torch.zeros(prob.shape, dtype=torch.bool)
        for n in range(prob.shape[1]):
            p = prob[:, n].double().nan_to_num().clamp(0, 1)
            live = n < lengths
            if live.any():
                p = torch.where(live, p, 1.0)
                out[:, n] = self._choose(torch.stack([1 - p, p], -1)) == 1
        return out

    def draw(self, weights: Tensor, index: int | Tensor = 0) -> Tensor:
        many = weights.double().nan_to_num().reshape(len(weights), -1, weights.shape[-1])
        chosen = [self._choose(many[:, k]) for k in range(many.shape[1])]
        drawn = torch.tensor(chosen).expand(len(weights), -1)
        return drawn.reshape(weights.shape[:-1])

    def normal(self, shape: tuple[int, ...], index: int = 0) -> Tensor:
        rows, size = len(self.probability), torch.Size(shape).numel()
        if self.cut or not self._normals:
            return torch.zeros(rows, *shape, dtype=torch.float64)
        numbers = self._normals.pop(0)
        if numbers.shape != (rows, size):
            raise ValueError(f"nodes {list(numbers.shape)} for {rows} rows of {size} numbers")
        return numbers.view(rows, *shape)

    def noise(self, positions: Tensor, count: int) -> Tensor:
        raise TypeError("noise that belongs to places is given, not integrated over")

    def exponential(self, positions: Tensor, count: int) -> Tensor:
        raise TypeError("exponential noise has no nodes")

    def _choose(self, weights: Tensor) -> int:
        """Choose one of the options for all rows, by `weights [R, options]`."""
        if len(self.taken) >= self._most:
            self.cut = True
            return 0
        share = weights / weights.sum(-1, keepdim=True).clamp_min(1e-300)
        possible = (share * self.probability[:, None]).amax(0).nonzero()[:, 0].tolist()
        if len(self.taken) < len(self._script):
            choice = self._script[len(self.taken)]
        else:
            choice, *others = possible
            self.pending += [(*self.taken, other) for other in others]
        self.taken.append(choice)
        self.probability = self.probability * share[:, choice]
        return choice


def branches(
    run: Callable[[QuadratureCoins, int], Outcome], normals: Sequence[Tensor], most: int = 64
) -> Iterator[tuple[Outcome, QuadratureCoins]]:
    """Yield every branch of `run`, which takes coins and a number of rows, with its coins."""
    pending: list[Script] = [()]
    while pending:
        coins = QuadratureCoins(pending.pop(), normals, most)
        outcome = run(coins, len(normals[0]))
        pending += coins.pending
        yield outcome, coins


def normal_rule(count: int, *kinks: float) -> tuple[Tensor, Tensor]:
    """Nodes and weights of N(0, 1) up to 6, split at `kinks`: Gauss and Legendre's, a piece each.

    A kink is where the mean to be taken is not smooth, such as where an acceptance reaches 1.
    """
    edges = [-6.0, *sorted(k for k in kinks if abs(k) < 6), 6.0]
    pieces = [_legendre(count, low, high) for low, high in itertools.pairwise(edges)]
    nodes, weights = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return nodes, weights * (-nodes.square() / 2).exp() / (2 * torch.pi) ** 0.5


def uniform_rule(count: int) -> tuple[Tensor, Tensor]:
    """Nodes of N(0, 1) at which what depends on Φ of them is smooth, and their weights."""
    shares, weights = _legendre(count, 0.0, 1.0)
    return torch.special.ndtri(shares), weights


def _legendre(count: int, low: float, high: float) -> tuple[Tensor, Tensor]:
    x, w = (torch.from_numpy(each) for each in np.polynomial.legendre.leggauss(count))
    return (high - low) / 2 * x + (high + low) / 2, (high - low) / 2 * w


def product(*rules: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Nodes `[R, k]` and weights `[R]` of k rules together."""
    nodes = torch.cartesian_prod(*(nodes for nodes, _ in rules)).reshape(-1, len(rules))
    weights = torch.cartesian_prod(*(weights for _, weights in rules)).reshape(-1, len(rules))
    return nodes, weights.prod(-1)
