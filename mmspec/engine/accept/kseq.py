"""SpecTr's sequential selection among independent candidates (Sun et al. 2023, algorithm 3)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..coins import RoundCoins
from ..draft import Draft, Scores, Verdict
from ..laws import Categorical, Contract, ContractError
from .chain import pick, prefix_verdict
from .tree import by_node, children, path_verdict, walk

_HALVINGS = 16


class KSeqRule:
    """K siblings, drawn independently from one law q, are judged by one and the same threshold.

    Sibling x stands with probability min(1, p(x) / (ρ q(x))); the first that does is followed. With
    β = Σ min(q, p / ρ), the ρ of [1, K] that solves 1 − (1 − β)^K = ρ β is the best; any larger one
    is exact as well, so the upper end of a bisection serves. When none stands, one token is drawn
    from p − min(q, p / ρ) (1 − (1 − β)^K) / β. With one sibling this is the token rule.
    """

    contract: Contract = "exact"

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """Judge trees and chains with `Categorical` laws."""
        if not draft.nodes:
            return prefix_verdict(draft, draft.lengths, coins.draw(scores.probs[:, 0]))
        if not isinstance(draft.law, Categorical):
            name = type(draft.law).__name__
            raise ContractError(
                f"K-SEQ is exact for independent siblings (Categorical), not {name}"
            )
        table = children(draft)  # [B, S, K]
        p = scores.probs.double()
        eldest = table[..., :1].clamp_min(0).expand(-1, -1, p.shape[-1])
        q = draft.law.probs.double().gather(1, eldest)  # [B, S, V]: of each slot's children
        count = (table >= 0).sum(-1, keepdim=True)  # [B, S, 1]
        q = torch.where(count > 0, q, 0.0)
        common, beta = _common(p, q, count)

        drafted = draft.tokens.gather(1, table.clamp_min(0).flatten(1)).view_as(table)
        prob = common.gather(2, drafted) / q.gather(2, drafted)
        ok = coins.accept(by_node(prob, table, draft.nodes), draft.lengths)
        path, length, slot = walk(draft, table, ok)

        taken = torch.where(beta > 0, (1 - (1 - beta) ** count) / beta, 0.0)
        rest = (p - common * taken).clamp_min(0)
        rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)
        return path_verdict(draft, path, length, coins.draw(pick(rest, slot)))


def _common(p: Tensor, q: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """min(q, p / ρ) `[B, S, V]` and its sum β `[B, S, 1]`."""
    low, high = torch.ones_like(p[..., :1]), count.to(p).clamp_min(1)
    for _ in range(_HALVINGS):
        rho = (low + high) / 2
        beta = torch.minimum(q, p / rho).sum(-1, keepdim=True)
        enough = 1 - (1 - beta) ** count <= rho * beta
        low, high = torch.where(enough, low, rho), torch.where(enough, rho, high)
    common = torch.minimum(q, p / high)
    return common, common.sum(-1, keepdim=True)
