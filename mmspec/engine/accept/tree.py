"""Helpers that the rules on trees share.

A slot is a place behind which children stand: slot 0 is the root, slot n + 1 is node n.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..draft import Draft, Verdict


def children(draft: Draft) -> Tensor:
    """Node of every slot's k-th child, `[B, N + 1, K]`, -1 where there is none.

    Siblings keep the order of their nodes; filling nodes are nobody's children, and so are those
    beyond the most that a node may have.
    """
    rows, nodes = draft.tokens.shape[:2]
    node = torch.arange(nodes, device=draft.tokens.device)
    parents = node - 1 if draft.parents is None else draft.parents
    parents, live = parents.expand(rows, -1), draft.live()
    most = draft.most_children
    earlier = (parents[:, :, None] == parents[:, None, :]) & (node[:, None] > node)
    rank = (earlier & live[:, None]).sum(-1)  # among its siblings
    tried = live & (rank < most)
    place = torch.where(tried, (parents + 1) * most + rank, (nodes + 1) * most)
    table = torch.full((rows, (nodes + 1) * most + 1), -1, device=node.device)
    table.scatter_(1, place, node.expand(rows, -1))
    return table[:, :-1].view(rows, nodes + 1, most)


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
    first = stands.int().argmax(-1, keepdim=True)
    chosen = torch.where(stands.any(-1), table.gather(2, first).squeeze(2), -1)  # [B, N + 1]
    here = torch.arange(chosen.shape[1], device=chosen.device)
    jump = torch.where(chosen >= 0, chosen + 1, here)  # a slot without a chosen child stays
    way = jump[:, :1]  # slots after 1, 2, … steps from the root; every pass doubles them
    while way.shape[1] < draft.levels:
        way, jump = torch.cat([way, jump.gather(1, way)], dim=1), jump.gather(1, jump)
    way = way[:, : draft.levels]
    length = (way.diff(dim=1, prepend=torch.zeros_like(way[:, :1])) != 0).sum(1)
    return (way - 1).clamp_min(0), length, way[:, -1]


def path_verdict(draft: Draft, path: Tensor, length: Tensor, token: Tensor) -> Verdict:
    """The verdict that keeps the first `length [B]` of `path [B, D]` and then emits `token [B]`."""
    kept = draft.tokens.gather(1, path)
    last = token[:, None]
    emitted = torch.cat([kept, last], dim=1).scatter_(1, length[:, None], last)
    chain = draft.parents is None  # its nodes are in place already
    return Verdict(length, emitted, last, length + 1, path=None if chain else path)
