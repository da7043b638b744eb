"""Reflection maximal coupling of normal laws, in turn (De Bortoli et al. 2025, algorithm 3)."""

from __future__ import annotations

import torch

from ..coins import RoundCoins
from ..types import Contract, ContractError, Draft, Gaussian, Scores, Verdict
from .chain import accepted_prefix, pick, prefix_verdict
from .gaussian import law_at, log_ratio, normal_laws, own_draw

ROUNDING = 1e-5  # deviations that differ by less are the same, in single precision


class ReflectionRule:
    """Accept x with probability min(1, p(x) / q(x)); the first that falls is reflected.

    With x = μ_q + σ ξ and e along (μ_q − μ_p) / σ, what is emitted in its place is

        μ_p + σ (ξ − 2 (e·ξ) e),

    which follows [p − q]+ without another draw. Acceptance is 2 Φ(−‖z‖ / 2), z = (μ_q − μ_p) / σ,
    the most that any coupling has. When the whole draft stands, one bonus token is drawn from p.
    """

    contract: Contract = "exact"

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """See `AcceptanceRule.verify`; takes chains with `Gaussian` laws whose σ is the target's.

        Raises:
            ContractError: also if a deviation differs: then the mirror image of q is not p.
        """
        if not draft.nodes:  # plain sampling: one token from p
            own = own_draw(law_at(scores.gaussian, draft.lengths), coins)
            return prefix_verdict(draft, draft.lengths, own.to(draft.tokens))
        p, q = normal_laws(draft, scores, "reflection")
        unlike = (p.std - q.std).abs() > ROUNDING * p.std
        if (unlike.any(-1) & draft.live()).any():
            raise ContractError(
                "the reflection rule is exact where drafter and target have the same deviations, "
                "and these differ; use 'gamma-maximal'"
            )
        x, q = draft.tokens.double(), Gaussian(q.mean, p.std)
        ok = coins.accept(log_ratio(p, q, x).exp(), draft.lengths)
        accepted = accepted_prefix(ok, draft)
        at = accepted.clamp_max(draft.nodes - 1)
        mean = pick(p.mean, at)
        std, apart = pick(q.std, at), pick(q.mean, at) - mean
        z, xi = apart / std, (pick(x, at) - mean - apart) / std
        e = z / z.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        mirrored = mean + std * (xi - 2 * (e * xi).sum(-1, keepdim=True) * e)
        own = own_draw(law_at(scores.gaussian, accepted), coins)
        token = torch.where((accepted < draft.lengths)[:, None], mirrored, own)
        return prefix_verdict(draft, accepted, token.to(draft.tokens))
