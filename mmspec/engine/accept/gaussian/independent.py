"""CSpD as its authors released it: each vector by itself, none is taken back (Wang et al. 2024)."""

from __future__ import annotations

import torch

from ...coins import RoundCoins
from ...draft import Draft, Scores, Verdict
from ...laws import Contract, Gaussian
from ..chain import pick
from .base import law_at, log_ratio, normal_laws, own_draw
from .excess import race


class IndependentRule:
    """Accept x with probability min(1, p̃(x) / q̃(x)), whatever became of those in front of it.

    p̃ and q̃ are p and q with deviations κ times as large, which softens the test: with κ → ∞ all
    stands that is not judged by its deviations. Where x falls, [p − q]+ is drawn from, for as many
    attempts as it takes (the released code gives up after 100 and leaves a vector of zeros); its
    factor Σ of the earlier steps' deviations is left out.

    It is lossy: what falls with the softened test is not what the residual makes up for, and
    vectors that are scored behind one known set are drawn as if they knew nothing of each other. On
    a chain of tokens whose law is known, four a draft, with a drafter of which an exact rule keeps
    68 % (`python -m benchmarks micro --only cspd_bias --samples 40`), the fourth token's
    correlation with the third should be 0.60 and is 0.10 at κ = 42, where 39 % stand, and 0.04 at
    κ = 1, where 17 % do; its deviation is 16 and 19 % too small. The target alone, four at once,
    does the same.

    Args:
        softening: κ, 1 or more; the knob. The released code has 42.
    """

    contract: Contract = "lossy"
    local = True

    def __init__(self, softening: float = 42.0) -> None:
        self.softening = softening

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """Judge chains with `Gaussian` laws."""
        if not draft.nodes:
            own = own_draw(law_at(scores.gaussian, draft.lengths), coins)[:, None]
            own = own.to(draft.tokens)
            return Verdict(draft.lengths, own, own, torch.ones_like(draft.lengths))
        p, q = normal_laws(draft, scores, "cspd-independent")
        wide_p, wide_q = (Gaussian(law.mean, law.std * self.softening) for law in (p, q))
        ratio = log_ratio(wide_p, wide_q, draft.tokens.double()).exp()
        keep = coins.accept(ratio, draft.lengths) & draft.live()
        fell = draft.live() & ~keep
        _, drawn = race(p, q, torch.ones_like(ratio), fell, coins)
        tokens = torch.where(fell[..., None], drawn.to(draft.tokens), draft.tokens)
        # a row without a draft, among others that have one, gets one vector as in plain sampling
        empty = draft.lengths == 0
        own = own_draw(law_at(scores.gaussian, torch.zeros_like(draft.lengths)), coins)
        tokens[:, 0] = torch.where(empty[:, None], own.to(tokens), tokens[:, 0])
        counts = draft.lengths.clamp_min(1)
        last = pick(tokens, counts[:, None] - 1)
        return Verdict(keep.sum(1), torch.cat([tokens, last], 1), last, counts, keep=keep)
