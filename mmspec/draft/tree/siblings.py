"""Siblings: ways of drawing the children of a tree's nodes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...engine.coins import RoundCoins
from ...engine.laws import Categorical, Law, OneHot
from ...engine.laws import WithoutReplacement as Without
from ...methods.parts.shared import Siblings


def draw_siblings(laws: Tensor, width: int, how: Siblings, coins: RoundCoins, drawn: int) -> Tensor:
    """Children `[B, M, width]` of nodes with the given laws `[B, M, V]`.

    Args:
        how: drawn "without-replacement" (as Gumbel-top-k does, Kool et al. 2019; Jeon et al. 2024),
            "independent"-ly, or the "top" of the law, without chance (EAGLE-2's choice).
        drawn: nodes of this round that have been drawn already.
    """
    if how == "top":
        return laws.topk(width, dim=-1).indices
    chosen: list[Tensor] = []
    for k in range(width):
        # a law with fewer tokens than children has none left for the last ones: these get any, and
        # never stand
        if k and how == "without-replacement":
            laws = laws.scatter(2, chosen[-1][..., None], 0.0)
        chosen.append(coins.draw(laws, drawn + k * laws.shape[1]))
    return torch.stack(chosen, 2)


def outlook(probs: Tensor, how: Siblings) -> Tensor:
    """Probability of a child, as far as that is known before it is drawn `[B, M, K]`.

    Never more than for an elder sibling.

    Args:
        probs: probabilities `[B, M, K]` of the children that were then drawn.
        how: "without-replacement": what elder siblings leave of the law (DySpec, Xiong et al.
            2024). "independent": 1, the same for all, as K-SEQ judges them all by a threshold
            that depends on their number: none of them may have a say in it. "top": `probs`
            itself, for there is no chance in it.
    """
    if how == "top":
        return probs
    if how == "independent":
        return torch.ones_like(probs)
    left = 1 - F.pad(probs, (1, -1)).cumsum(2)
    # a token drawn again is taken off twice; sums made in parallel may round up and down
    return left.clamp_min(0).cummin(2).values


def law_of_siblings(probs: Tensor, how: Siblings) -> Law:
    """Law that such nodes were drawn from; `probs [B, N, V]` are the laws of their parents."""
    if how == "top":
        return OneHot()
    return Without(probs) if how == "without-replacement" else Categorical(probs)
