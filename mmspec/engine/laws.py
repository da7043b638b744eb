"""Laws: what drafted nodes were really drawn from, and what a rule promises of the output.

Shapes: B rows (samples), N drafted nodes a row, V vocabulary, C numbers of a vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..errors import InputError

Contract = Literal["exact", "exact-greedy", "exact-rounded", "bounded", "lossy"]


@dataclass
class OneHot:
    """Law of nodes that were chosen without chance: q = 1 for the drafted token."""


@dataclass
class Categorical:
    """Node n was drawn from `probs[:, n]`, `[B, N, V]`; a chosen node has a one-hot row."""

    probs: Tensor


@dataclass
class WithoutReplacement:
    """Node n was drawn from `probs[:, n]`, `[B, N, V]`, less the tokens of its elder siblings."""

    probs: Tensor


@dataclass
class Gaussian:
    """Node n was drawn from a normal law with `mean` and `std`, both `[B, N, C]`."""

    mean: Tensor
    std: Tensor

    def noisy(self) -> Tensor:
        """Mark entries with noise `[B, N, C]`: a deviation that is no number has none."""
        return (self.std > 0) & (self.std < torch.inf)

    def drawable(self, drawn: Tensor) -> Tensor:
        """Mark vectors `[B, N]` of `drawn [B, N, C]` that are numbers, and of laws with noise."""
        return ((drawn.abs() < torch.inf) & self.noisy()).all(-1)


@dataclass
class Opaque:
    """Unknown law, or one without a density: no exact rule takes such a draft."""


Law = OneHot | Categorical | WithoutReplacement | Gaussian | Opaque


@dataclass
class Rewards:
    """Rewards in place of laws: of the frames of every node, `[B, N, T]`.

    A frame that the reward could not judge is NaN. T is 0 where nobody was asked.
    """

    frames: Tensor


class ContractError(InputError):
    """A drafter and a rule were put together whose combination would break the rule's contract."""


class TargetError(FloatingPointError):
    """Error: the target's laws are no numbers, and there is nothing to sample from."""
