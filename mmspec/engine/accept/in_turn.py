"""Siblings judged one after the other: what recursive rejection and its relaxations share."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ..coins import RoundCoins
from ..draft import Draft, Scores, Verdict
from ..laws import Categorical, ContractError, OneHot
from ..laws import WithoutReplacement as Without
from .chain import pick, prefix_verdict
from .tree import by_node, children, path_verdict, walk


class SiblingRule(ABC):
    """Tries a node's children in order and follows the first that stands, from the root on.

    For the child after one that fell, p is the normalized `left`, and q lacks the tokens that fell
    where siblings were drawn without replacement. When no child stands, one token is drawn from the
    p that is left.

    `p`, `q [B, S, V]` are laws, and `x [B, S, 1]` is a token.
    """

    @abstractmethod
    def credit(self, p: Tensor, x: Tensor) -> Tensor:
        """Weight against q(x) `[B, S, 1]`: x is kept with chance min(1, credit / q(x))."""

    def left(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        """Weights `[B, S, V]` of what the target still wants once x fell: [p − q]+."""
        return (p - q).clamp_min(0)

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """Judge trees and chains, whose siblings need not share a law.

        Laws are `Categorical` (of independent siblings), `WithoutReplacement` or `OneHot`.
        """
        if not draft.nodes:
            return prefix_verdict(draft, draft.lengths, coins.draw(scores.probs[:, 0]))
        if not isinstance(draft.law, OneHot | Categorical | Without):
            name = type(draft.law).__name__
            raise ContractError(
                "siblings are judged in turn by what they were drawn from: OneHot, Categorical or "
                f"WithoutReplacement, not {name}"
            )
        table = children(draft)  # [B, S, K]
        p = scores.probs
        gone = torch.zeros_like(p, dtype=torch.bool) if isinstance(draft.law, Without) else None
        probs = []
        *elder, youngest = table.unbind(2)
        for child in elder:  # [B, S]
            x, q = _drawn(draft, child, gone, p)
            probs.append(self._chance(p, q, x))
            p = self._after(p, q, x, child)
            if gone is not None:
                gone.scatter_(2, x, True)
        x, q = _drawn(draft, youngest, gone, p)
        probs.append(self._chance(p, q, x))
        ok = coins.accept(by_node(torch.stack(probs, 2), table, draft.nodes), draft.lengths)
        path, length, slot = walk(draft, table, ok)

        # what the youngest leaves matters only where the way ends
        end = slot[:, None]
        p, q, x = pick(p, end), pick(q, end), x.gather(1, end[..., None])
        rest = self._after(p, q, x, youngest.gather(1, end)).squeeze(1)
        return path_verdict(draft, path, length, coins.draw(rest))

    def _chance(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        """Probability `[B, S]`, or more than 1, that each slot's child stands once elders fell."""
        qx = q.gather(2, x)
        # more children than tokens: a repeated one has no q left, and never stands
        return torch.where(qx > 0, self.credit(p, x) / qx, 0.0).squeeze(2)

    def _after(self, p: Tensor, q: Tensor, x: Tensor, child: Tensor) -> Tensor:
        """The law that is left in every slot once its child fell `[B, S, V]`."""
        left = normalized(self.left(p, q, x))
        # nothing left: p = q, and a fall has probability 0
        return torch.where((child >= 0)[..., None] & (left.sum(-1, keepdim=True) > 0), left, p)


def normalized(weights: Tensor) -> Tensor:
    """Weights `[..., V]` over their sum; all zero where that is zero."""
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)


def _drawn(draft: Draft, child: Tensor, gone: Tensor | None, p: Tensor) -> tuple[Tensor, Tensor]:
    """Token `[B, S, 1]` of every slot's child (`child [B, S]`) and what it was drawn from."""
    node = child.clamp_min(0)
    x = draft.tokens.gather(1, node)[..., None]
    if not isinstance(draft.law, Categorical | Without):
        return x, torch.zeros_like(p).scatter_(2, x, 1.0)
    q = pick(draft.law.probs, node).to(p)
    return x, q if gone is None else normalized(q.masked_fill(gone, 0.0))
