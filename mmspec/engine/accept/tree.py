"""Helpers that the rules on trees share.

A slot is a place behind which children stand: slot 0 is the root, slot n + 1 is node n.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..draft import Draft, Verdict


def children(draft: Draft) -> Tensor:
    """Node of every slot's k-th child, `[B, N + 1, K]`, -1 where there is none.

    Siblings keep the order of their nodes; filling nodes are nobody's children, and so are those
    beyond the most that a node may have.
    """
    nodes, device = draft.nodes, draft.tokens.device
    parents = draft.parents
    if parents is None:
        parents = torch.arange(-1, nodes - 1, device=device).expand(len(draft.lengths), -1)
    slots = torch.arange(-1, nodes, device=device)[:, None]
    # the earlier a child stands, the larger is its weight; who is nobody's child has none
    weight = draft.live() * torch.arange(nodes, 0, -1, device=device)
    weight = (parents[:, None] == slots) * weight[:, None]  # [B, N + 1, N]
    found = weight.topk(min(nodes, draft.most_children), dim=2).values
    return torch.where(found > 0, nodes - found, -1)


def tokens_of(draft: Draft, table: Tensor) -> Tensor:
    """Tokens `[B, N + 1, K]` of the children in `table`; where there is none, any."""
    return draft.tokens.gather(1, table.clamp_min(0).flatten(1)).view_as(table)


def by_node(values: Tensor, table: Tensor, nodes: int) -> Tensor:
    """Spread `values [B, N + 1, K]` of the children in `table` to node order `[B, N]`."""
    place = torch.where(table < 0, nodes, table).flatten(1)
    out = values.new_zeros(len(values), nodes + 1)
    return out.scatter_(1, place, values.flatten(1))[:, :-1]


def walk(draft: Draft, table: Tensor, ok: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Follow from the root the first child that is `ok [B, N]`, as deep as that goes.

    Returns:
        The nodes on the way `[B, D]`, padded by repeating the last (0 if there is none); how many
        they are `[B]`; and the slot where the way ends `[B]`.
    """
    stands = ok.gather(1, table.clamp_min(0).flatten(1)).view_as(table) & (table >= 0)
    most, levels = draft.nodes, draft.levels
    chosen = torch.where(stands, table, most).amin(-1)  # [B, N + 1], of siblings the first
    here = torch.arange(most + 1, device=chosen.device)
    jump = torch.where(chosen < most, chosen + 1, here)  # a slot without a chosen child stays
    way = jump[:, :1]  # slots after 1, 2, … steps from the root; every pass doubles them
    while way.shape[1] < levels:
        way = torch.cat([way, jump.gather(1, way)], dim=1)
        if way.shape[1] < levels:
            jump = jump.gather(1, jump)
    way = way[:, :levels]
    length = (way != F.pad(way, (1, -1))).sum(1)  # steps from slot to slot, at first from the root
    return (way - 1).clamp_min(0), length, way[:, -1]


def path_verdict(draft: Draft, path: Tensor, length: Tensor, token: Tensor) -> Verdict:
    """The verdict that keeps the first `length [B]` of `path [B, D]` and then emits `token [B]`."""
    kept = draft.tokens.gather(1, path)
    last = token[:, None]
    emitted = torch.cat([kept, last], dim=1).scatter_(1, length[:, None], last)
    chain = draft.parents is None  # its nodes are in place already
    return Verdict(length, emitted, last, length + 1, path=None if chain else path)
