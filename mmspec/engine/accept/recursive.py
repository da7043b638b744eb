"""Recursive rejection: siblings take their turns against what is left of the target's law.

Miao et al. 2023 (SpecInfer) for siblings drawn with replacement; Jeon et al. 2024 (RSD) and Chen et
al. 2024 (Sequoia) without; with siblings chosen without chance it is EAGLE-2's rule.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..draft import Draft
from ..laws import Contract, OneHot
from .chain import pick
from .in_turn import SiblingRule, Turns
from .tree import tokens_of


class RecursiveRule(SiblingRule):
    """Try a node's children in order; the first that stands is followed.

    Child x, drawn from q, stands with probability min(1, p(x) / q(x)); if it falls, p becomes
    norm([p − q]+) for the next one, and q loses x where siblings were drawn without replacement.
    When no child stands, one token is drawn from the p that is left. On a chain this is the token
    rule.
    """

    contract: Contract = "exact"

    def credit(self, p: Tensor, x: Tensor) -> Tensor:
        return p.gather(2, x)

    def _turns(self, draft: Draft, p: Tensor, table: Tensor) -> Turns:
        if not isinstance(draft.law, OneHot):
            return super()._turns(draft, p, table)
        # [p − q]+ of a chosen token is p without it: what is left follows from the tokens alone
        there, x = table >= 0, tokens_of(draft, table)
        mine = p.gather(2, x) * there
        if x.shape[2] > 1:
            equal = (x[..., None] == x[..., None, :]) & there[..., None, :]
            mine = mine.masked_fill(equal.tril(-1).any(-1), 0)  # taken by an elder
            mine = mine / (1 - (mine.cumsum(2) - mine)).clamp_min(torch.finfo(mine.dtype).tiny)
        x = torch.where(there, x, x[..., :1])

        def left(end: Tensor) -> Tensor:
            rest = pick(p, end)
            without = rest.scatter(2, pick(x, end), 0.0)
            use = there[..., :1].gather(1, end[..., None]) & (without.sum(-1, keepdim=True) > 0)
            return torch.where(use, without, rest).squeeze(1)

        return mine, left
