"""The Γ-maximal coupling of normal laws, step by step: what falls is drawn from the residual."""

from __future__ import annotations

import torch

from ...coins import RoundCoins
from ...draft import Draft, Scores, Verdict
from ...laws import Contract, Gaussian
from ..chain import accepted_prefix, prefix_verdict
from .base import law_at, log_ratio, normal_laws, own_draw, plain_verdict
from .excess import race


class GammaMaximalRule:
    """Accept x with probability min(1, p(x) / q(x)); after the first rejection draw from [p − q]+.

    With equal deviations the residual is drawn in closed form (Γ-maximal coupling: along the
    difference of the means the coordinate s lies above the middle, with the survival function
    [Φ((s − s_q) / σ) − Φ((s − s_p) / σ)] / TV; across it is plain normal), with unequal ones as
    `excess` says. Acceptance is 1 − TV(p, q) in either case. This is the token rule on vectors;
    CSpD's rule without its factor Σ (Wang et al. 2024) is the same, at the last noisy step of a
    token whose noises before drafter and target share.
    """

    contract: Contract = "exact"

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """Judge chains with `Gaussian` laws."""
        if not draft.nodes:
            return plain_verdict(draft, scores, coins)
        p, q = normal_laws(draft, scores, "gamma-maximal")
        ok = coins.accept(log_ratio(p, q, draft.tokens.double()).exp(), draft.lengths)
        accepted = accepted_prefix(ok, draft)
        fell = accepted < draft.lengths
        mine = law_at(scores.gaussian, accepted)
        drafted = law_at(q, accepted.clamp_max(draft.nodes - 1))
        own, r = own_draw(mine, coins), torch.ones_like(fell, dtype=torch.float64)
        _, left = race(_one(mine), _one(drafted), r[:, None], fell[:, None], coins)
        token = torch.where(fell[:, None], left[:, 0], own)
        return prefix_verdict(draft, accepted, token.to(draft.tokens))


def _one(law: Gaussian) -> Gaussian:
    """Laws `[B, C]` as those of one entry a row `[B, 1, C]`."""
    return Gaussian(law.mean[:, None], law.std[:, None])
