"""Equal prefixes of several trees are one (the tree fusion of RASD, Quan et al. 2025)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def first_equal(tokens: Tensor, parents: Tensor, live: Tensor, levels: int) -> Tensor:
    """The first node `[B, N]` that stands for the same tokens from the root down as each node does.

    Itself, for most of them; a filling node is equal to no other. Nodes follow their parents.

    Args:
        tokens, parents: of nodes under one root, `[B, N]`; -1 is the root.
        live: True for real nodes `[B, N]`.
        levels: no node is deeper.
    """
    # slot 0 is the root, its own ancestor and equal to itself alone; slot n + 1 is node n
    above = F.pad(parents + 1, (1, 0))
    slots = above.shape[1]
    same = (tokens[:, :, None] == tokens[:, None, :]) & live[:, :, None] & live[:, None, :]
    equal = F.pad(same, (1, 0, 1, 0))
    equal[:, 0, 0] = True
    # what is equal over 2^k steps upwards is compared from there on: over 2^(k + 1) steps
    for _ in range(levels.bit_length()):
        upwards = equal.gather(1, above[:, :, None].expand(-1, -1, slots))
        equal = equal & upwards.gather(2, above[:, None, :].expand(-1, slots, -1))
        above = above.gather(1, above)
    itself = torch.eye(slots, dtype=torch.bool, device=tokens.device)
    return (equal | itself).int().argmax(2)[:, 1:] - 1
