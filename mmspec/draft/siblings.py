"""How the children of a tree's nodes come about."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import Siblings
from ..engine.coins import RoundCoins
from ..engine.types import Categorical, Law, OneHot
from ..engine.types import WithoutReplacement as Without


def draw_siblings(laws: Tensor, width: int, how: Siblings, coins: RoundCoins, drawn: int) -> Tensor:
    """Children `[B, M, width]` of nodes with the given laws `[B, M, V]`.

    Args:
        how: drawn "without-replacement" (as Gumbel-top-k does, Kool et al. 2019; Jeon et al. 2024),
            "independent"-ly, or the "top" of the law, without chance (EAGLE-2's choice).
        drawn: nodes of this round that have been drawn already.
    """
    if how == "top":
        return laws.topk(width, dim=-1).indices
    chosen = []
    for k in range(width):
        x = coins.draw(laws, drawn + k * laws.shape[1])
        chosen.append(x)
        if how == "without-replacement":
            left = laws.scatter(2, x[..., None], 0.0)
            # a law with fewer tokens than children: the last one is drawn again
            laws = torch.where((left > 0).any(-1, keepdim=True), left, laws)
    return torch.stack(chosen, 2)


def law_of_siblings(probs: Tensor, how: Siblings) -> Law:
    """What such nodes were drawn from; `probs [B, N, V]` are the laws of their parents."""
    if how == "top":
        return OneHot()
    return Without(probs) if how == "without-replacement" else Categorical(probs)
