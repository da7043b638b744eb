"""Local verification: a set stands, in place of a prefix (MuLo-SD, Peruzzo et al. 2026)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from ..coins import RoundCoins
from ..draft import Draft, Scores, Verdict
from ..laws import Categorical, Contract, ContractError, OneHot
from .chain import accepted_prefix, prefix_verdict, token_probs
from .islands import crowd
from .lantern.lantern import pool

Criterion = Literal["threshold", "ratio"]


class LocalRule:
    """Judge every node where it stands, whatever became of those in front of it.

    Node x stands if the probability that is pooled over its nearest codes,
    P(x) = p(x) + Σ_i p(n_i), says so: by "threshold" if P(x) ≥ θ, by "ratio" with chance
    min(1, P(x) / (θ q(x))). Nodes at most `radius` rows and columns from a fallen one fall with it.
    The fallen are drawn anew from p, each by itself; the target then draws those again, in turn,
    that come after others of their island (`Target.sample_next`). A token of probability 0 falls
    and a certain one, such as the end of a line, stands.

    It is lossy: what is kept was scored behind tokens that fell. The law of every node is the
    target's own, behind the draft in front of it, where "ratio" is asked, θ = 1 and nothing is
    pooled. For that, a node with none but itself to blame is drawn from [p − q]+ under "ratio".

    With `advance`, only the first nodes of a draft join the output. The others are left to be
    judged again, with the law that they follow by then: drafters with a window do that. With 1 and
    no `slips`, what joins are the nodes in front of the first fallen one, and this one drawn anew:
    under the conditions above the rule then is the token rule, and exact.

    Args:
        stride: positions in a row of the picture.
        threshold: θ in [0, 1]; the knob: of "threshold" all stands at 0, of "ratio" at θ → 0.
        neighbours: nearest codes of every code `[V, k]`; None: nothing is pooled.
        radius: l.
        criterion: see above.
        advance: nodes that join the output in a round at least; None: all of the draft.
        slips: fallen nodes that a round passes over: up to the next one, all nodes join.
    """

    contract: Contract = "lossy"
    local = True

    def __init__(
        self,
        stride: int,
        threshold: float,
        neighbours: Tensor | None = None,
        radius: int = 0,
        criterion: Criterion = "threshold",
        advance: int | None = None,
        slips: int = 0,
    ) -> None:
        self.advance, self.slips = advance, slips
        self.stride, self.threshold, self.radius = stride, threshold, radius
        self.neighbours, self.criterion = neighbours, criterion

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """Judge chains with `positions`; "threshold": of any law."""
        if draft.parents is not None:
            raise ContractError("the local rule judges chains; this draft is a tree")
        if not draft.nodes:
            return prefix_verdict(draft, draft.lengths, coins.draw(scores.probs[:, 0]))
        p, live = scores.at_nodes(draft), draft.live()
        own = token_probs(p, draft.tokens)
        failed = live & ~self._stand(draft, p, coins)
        near = self._near(draft, failed)
        fallen = (near > 0) & live & (own < 1)
        left = self._left(draft, p, failed & (near == 1))
        # a row without a draft, among others that have one, gets one token as in plain decoding
        empty = (draft.lengths == 0)[:, None]
        drawn = coins.draw(torch.where(empty[..., None], p, left))
        tokens = torch.where(fallen | empty, drawn, draft.tokens)
        counts, keep = draft.lengths.clamp_min(1), live & ~fallen
        if self.advance is not None:
            passed = (~keep).cumsum(1) <= self.slips
            sure = accepted_prefix(passed, draft) + 1
            counts = torch.minimum(counts, sure.clamp_min(self.advance))
            keep = keep & (torch.arange(draft.nodes, device=keep.device) < counts[:, None])
        last = tokens.gather(1, counts[:, None] - 1)
        emitted = torch.cat([tokens, last], dim=1)
        return Verdict(keep.sum(1), emitted, last, counts, keep=keep)

    def _stand(self, draft: Draft, p: Tensor, coins: RoundCoins) -> Tensor:
        law = draft.law
        if self.criterion == "ratio" and not isinstance(law, Categorical | OneHot):
            name = type(law).__name__
            raise ContractError(f"criterion 'ratio' needs the draft's law, not {name}")
        q = law.probs if isinstance(law, Categorical) else None
        return self.stand(p, q, draft.tokens, draft.lengths, coins)

    def stand(
        self, p: Tensor, q: Tensor | None, tokens: Tensor, lengths: Tensor, coins: RoundCoins
    ) -> Tensor:
        """Mark the `tokens [B, N]`, drawn from `q [B, N, V]`, that stand by their laws `p`.

        `q` of None: tokens chosen without chance. Entries of row b from `lengths[b]` on do not
        matter.
        """
        own = token_probs(p, tokens)
        pooled = own
        if self.neighbours is not None:
            pooled = pool(p, tokens[..., None], self.neighbours, math.inf).credit.squeeze(2)
        if self.criterion == "threshold":
            return (pooled >= self.threshold) & (own > 0)
        drawn = torch.ones_like(own) if q is None else token_probs(q, tokens)
        ratio = pooled / (max(self.threshold, 1e-9) * drawn)
        return coins.accept(torch.where(own > 0, ratio, 0.0), lengths)

    def _left(self, draft: Draft, p: Tensor, alone: Tensor) -> Tensor:
        """Law that replaces the fallen `[B, N, V]`; `alone [B, N]`: no other failed near them."""
        if self.criterion == "threshold":
            return p
        if isinstance(draft.law, Categorical):
            left = (p - draft.law.probs).clamp_min(0)
        else:
            left = p.scatter(2, draft.tokens[..., None], 0.0)
        use = alone[..., None] & (left.sum(-1, keepdim=True) > 0)
        return torch.where(use, left, p)

    def _near(self, draft: Draft, failed: Tensor) -> Tensor:
        """Count the failed nodes `[B, N]` near each node, itself included."""
        if not self.radius:
            return failed.long()
        if draft.positions is None:
            raise ContractError(
                "the local rule asks where nodes stand, and this draft has no positions"
            )
        row = draft.positions[:, :1] // self.stride  # the draft's first
        cell = draft.positions - row * self.stride
        rows = -(-(draft.nodes + self.stride - 1) // self.stride)
        canvas = torch.zeros(len(cell), rows * self.stride, dtype=torch.bool, device=cell.device)
        canvas.scatter_(1, cell, failed)
        counts = crowd(canvas.unflatten(1, (rows, self.stride)), self.radius)
        return counts.flatten(1).gather(1, cell)
