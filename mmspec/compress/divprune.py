"""DivPrune: tokens as unlike each other as can be (Alvar et al. 2025, section 3, algorithm 1)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Compressed, check, take, wide


def divprune(features: Tensor, keep: int) -> Compressed:
    """Greedy max-min diversity over the cosine distance `1 − cos`.

    The first token is the one farthest from its nearest neighbour; each next one is the farthest
    from the nearest that is already kept. Published: 9.8 % of the tokens stay.

    Args:
        features: `[B, N, C]`, behind the projector as published.
        keep: tokens K that stay, untouched.

    Raises:
        InputError: `keep` is no number of tokens there are.
    """
    check(features, keep)
    unit = F.normalize(wide(features), dim=-1)
    alike = unit @ unit.transpose(1, 2)
    # two tokens that are nearest to each other are equally far on every machine
    far = 1 - (alike + alike.transpose(1, 2)) / 2  # [B, N, N]
    itself = torch.eye(far.shape[1], dtype=torch.bool, device=far.device)
    pick = far.masked_fill(itself, torch.inf).amin(2).argmax(1, keepdim=True)  # [B, 1]
    kept = torch.zeros(far.shape[:2], dtype=torch.bool, device=far.device).scatter_(1, pick, True)
    nearest = take(far, pick)[:, 0]  # [B, N]: distance to the nearest kept token
    for _ in range(keep - 1):
        pick = nearest.masked_fill(kept, -torch.inf).argmax(1, keepdim=True)
        kept.scatter_(1, pick, True)
        nearest = torch.minimum(nearest, take(far, pick)[:, 0])
    index = kept.long().argsort(dim=1, descending=True, stable=True)[:, :keep]
    return Compressed.full(take(features, index), index)
