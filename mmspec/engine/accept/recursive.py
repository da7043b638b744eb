"""Recursive rejection: siblings take their turns against what is left of the target's law.

Miao et al. 2023 (SpecInfer) for siblings drawn with replacement; Jeon et al. 2024 (RSD) and Chen et
al. 2024 (Sequoia) without; with siblings chosen without chance it is EAGLE-2's rule.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..coins import RoundCoins
from ..types import Categorical, Contract, ContractError, Draft, OneHot, Scores, Verdict
from ..types import WithoutReplacement as Without
from .chain import pick, prefix_verdict
from .tree import by_node, children, path_verdict, walk


class RecursiveRule:
    """Try a node's children in order; the first that stands is followed.

    Child x, drawn from q, stands with probability min(1, p(x) / q(x)); if it falls, p becomes
    norm([p − q]+) for the next one, and q loses x where siblings were drawn without replacement.
    When no child stands, one token is drawn from the p that is left. On a chain this is the token
    rule.
    """

    contract: Contract = "exact"

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """See `AcceptanceRule.verify`.

        Takes trees and chains with `Categorical` (independent siblings), `WithoutReplacement` or
        `OneHot` laws; siblings need not share one.
        """
        if not draft.nodes:
            return prefix_verdict(draft, draft.lengths, coins.draw(scores.probs[:, 0]))
        if not isinstance(draft.law, OneHot | Categorical | Without):
            name = type(draft.law).__name__
            raise ContractError(
                "recursive rejection is exact for OneHot, Categorical and WithoutReplacement, "
                f"not {name}"
            )
        table = children(draft)  # [B, S, K]
        prob, rest = self._turns(draft, scores, table)
        ok = coins.accept(by_node(prob, table, draft.nodes), draft.lengths)
        path, length, slot = walk(draft, table, ok)
        return path_verdict(draft, path, length, coins.draw(pick(rest, slot)))

    @staticmethod
    def _turns(draft: Draft, scores: Scores, table: Tensor) -> tuple[Tensor, Tensor]:
        """Probability that each child stands once its elder siblings fell `[B, S, K]`, and the law
        that is left when all of them did `[B, S, V]`."""
        p, vocab = scores.probs, scores.probs.shape[-1]
        gone = torch.zeros_like(p, dtype=torch.bool)
        probs = []
        for child in table.unbind(2):  # [B, S]
            here, node = (child >= 0)[..., None], child.clamp_min(0)
            x = draft.tokens.gather(1, node)[..., None]  # [B, S, 1]
            if not isinstance(draft.law, Categorical | Without):
                q = F.one_hot(x.squeeze(2), vocab).to(p)
            else:
                q = draft.law.probs.gather(1, node[..., None].expand(-1, -1, vocab)).to(p)
                if isinstance(draft.law, Without):
                    q = normalized(q.masked_fill(gone, 0.0))
                    gone = gone.scatter(2, x, True)
            qx = q.gather(2, x)
            # more children than tokens: a repeated one has no q left, and never stands
            probs.append(torch.where(qx > 0, p.gather(2, x) / qx, 0.0).squeeze(2))
            left = normalized((p - q).clamp_min(0))
            # nothing left: p = q, and a fall has probability 0
            p = torch.where(here & (left.sum(-1, keepdim=True) > 0), left, p)
        return torch.stack(probs, 2), p


def normalized(weights: Tensor) -> Tensor:
    """Weights `[..., V]` over their sum; all zero where that is zero."""
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)
