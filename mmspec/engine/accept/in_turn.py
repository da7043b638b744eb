"""Siblings judged one after the other: what recursive rejection and its relaxations share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..coins import RoundCoins
from ..draft import Draft, Scores, Verdict
from ..laws import Categorical, ContractError, OneHot
from ..laws import WithoutReplacement as Without
from .chain import pick, prefix_verdict
from .tree import by_node, children, path_verdict, tokens_of, walk

Turns = tuple[Tensor, Callable[[Tensor], Tensor]]


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
        chances, left = self._turns(draft, scores.probs, table)
        ok = coins.accept(by_node(chances, table, draft.nodes), draft.lengths)
        path, length, slot = walk(draft, table, ok)
        return path_verdict(draft, path, length, coins.draw(left(slot[:, None])))

    def _turns(self, draft: Draft, p: Tensor, table: Tensor) -> Turns:
        """How likely each child in `table [B, S, K]` stands once its elders fell, and what is left.

        Chances `[B, S, K]` may be more than 1. The function gives the weights `[B, V]` of what is
        left once all children of the slots `[B, 1]` fell.
        """
        x, there = (t.split(1, dim=2) for t in (tokens_of(draft, table), table >= 0))
        law = _Drawn(draft, table, p)
        q = law.of(0, x)
        credits, drawn = [self.credit(p, x[0])], [q.gather(2, x[0])]
        for k in range(1, len(x)):
            p = self._after(p, q, x[k - 1], there[k - 1])
            q = law.of(k, x)
            credits.append(self.credit(p, x[k]))
            drawn.append(q.gather(2, x[k]))
        qx = torch.cat(drawn, 2)
        # more children than tokens: a repeated one has no q left, and never stands
        chances = torch.where(qx > 0, torch.cat(credits, 2) / qx, 0.0)

        def left(end: Tensor) -> Tensor:
            # what the youngest leaves matters only where the way ends
            youngest = x[-1].gather(1, end[..., None]), there[-1].gather(1, end[..., None])
            return self._after(pick(p, end), pick(q, end), *youngest).squeeze(1)

        return chances, left

    def _after(self, p: Tensor, q: Tensor, x: Tensor, there: Tensor) -> Tensor:
        """The law that is left in every slot once its child fell `[B, S, V]`."""
        left = self.left(p, q, x)
        mass = left.sum(-1, keepdim=True)
        # nothing left: p = q, and a fall has probability 0
        return torch.where(there & (mass > 0), left / mass, p)


def normalized(weights: Tensor) -> Tensor:
    """Weights `[..., V]` over their sum; all zero where that is zero."""
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)


class _Drawn:
    """Laws `[B, S, V]` that the children of slots were drawn from, in the type of `p`."""

    def __init__(self, draft: Draft, table: Tensor, p: Tensor) -> None:
        self._law, self._p = draft.law, p
        self._nodes = table.clamp_min(0).unbind(2)

    def of(self, k: int, x: Sequence[Tensor]) -> Tensor:
        """Laws of the k-th children; `x` are the tokens `[B, S, 1]` of all."""
        if not isinstance(self._law, Categorical | Without):
            return torch.zeros_like(self._p).scatter_(2, x[k], 1.0)
        q = pick(self._law.probs, self._nodes[k]).to(self._p)
        if k == 0 or not isinstance(self._law, Without):
            return q
        return normalized(q.scatter(2, torch.cat([*x[:k]], 2), 0.0))
