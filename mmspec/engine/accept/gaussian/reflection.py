"""Reflection maximal coupling of normal laws, in turn (De Bortoli et al. 2025, algorithm 3).

Theirs is of equal deviations; what unequal ones leave over is drawn as `Mirror` says.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...coins import RoundCoins
from ...draft import Draft, Scores, Verdict
from ...laws import Contract, Gaussian, Law
from ..chain import accepted_prefix, pick, prefix_verdict
from .base import law_at, log_ratio, normal_laws, own_draw, parts_at, plain_verdict

TRIES = 32  # draws from p at a time
_ROUNDED = 32  # ulp of the laws: a deviation is the exp of some 20, and is rounded as often
_SURE = 1 - 1e-9  # a chance above is 1 but for rounding


class ReflectionRule:
    """Accept x with probability min(1, p(x) / q(x)); the first that falls is mirrored.

    Acceptance is 1 − TV(p, q), the most that any coupling has: with equal deviations 2 Φ(−‖z‖ / 2),
    z = (μ_q − μ_p) / σ. When the whole draft stands, one bonus token is drawn from p.
    """

    contract: Contract = "exact"

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """Judge chains with `Gaussian` laws."""
        if not draft.nodes:
            return plain_verdict(draft, scores, coins)
        p, q = normal_laws(draft, scores, "reflection")
        x, std = draft.tokens.double(), q.std
        # deviations that differ by rounding alone are the same: what they lack is hardly ever drawn
        same = _ROUNDED * max(_precision(scores.gaussian), _precision(draft.law))
        q.std = torch.where((p.std - std).abs() <= same * p.std, p.std, std)
        ok = coins.accept(log_ratio(p, q, x).exp(), draft.lengths)
        accepted = accepted_prefix(ok, draft)
        mine = law_at(scores.gaussian, accepted)
        token, fell = own_draw(mine, coins), accepted < draft.lengths
        if fell.any():
            at = accepted.clamp_max(draft.nodes - 1)
            mean, std, drafted = parts_at((q.mean, q.std, x), at)
            mirrored = Mirror(mine, Gaussian(mean, std)).draw(drafted, fell, coins)
            token = torch.where(fell[:, None], mirrored, token)
        return prefix_verdict(draft, accepted, token.to(draft.tokens))


def _precision(law: Law) -> float:
    assert isinstance(law, Gaussian)
    return torch.finfo(law.std.dtype).eps


@dataclass
class Mirror:
    """Draws from [p − q]+ what stands in the place of a vector that was drawn from q and fell.

    The mirror image of x = μ_q + σ_q ξ is y = μ_p + σ_p (ξ − 2 (e·ξ) e), with e along the
    difference of the means in deviations. All x together would give p; those that fall give
    g(y) = p(y) [1 − p(x) / q(x)]+, of the same mass as what is wanted,
    f(y) = p(y) [1 − q(y) / p(y)]+. With equal deviations f = g. Else y stands with probability
    min(1, f / g), and what g lacks, [f − g]+, is drawn by trying vectors of p: on average one a
    judged vector at most.

    Args:
        p, q: laws `[B, C]` in float64.
    """

    p: Gaussian
    q: Gaussian

    def __post_init__(self) -> None:
        apart, std = self.q.mean - self.p.mean, self.p.std
        z = torch.where(std > 0, apart / std, 0.0)
        self.e = z / z.norm(dim=-1, keepdim=True).clamp_min(1e-300)

    def draw(self, x: Tensor, fell: Tensor, coins: RoundCoins) -> Tensor:
        """Vectors `[B, C]` for rows that `fell [B]`; of others they mean nothing.

        Args:
            x: what fell `[B, C]`.
            coins: of verification, whose normal numbers from C on are not yet used.
        """
        turned = self._turned((x - self.q.mean) / self.q.std)
        y = torch.addcmul(self.p.mean, self.p.std, turned)
        wanted, given = self._shares(x[:, None], y[:, None])
        # a law without noise is drawn as it is: all of it is left over
        noisy = (self.p.std > 0).all(-1, keepdim=True)
        chance = torch.where(noisy & (wanted < _SURE * given), wanted / given, 1.0)
        stands = _toss(chance, 0, coins)[:, 0]
        open_, first, size = fell & ~stands, 1, x.shape[-1]
        while open_.any():
            numbers = torch.arange(first, first + TRIES, device=x.device).expand(len(x), -1)
            xi = coins.normal((TRIES, size), size * first)
            tried = torch.addcmul(self.p.mean[:, None], self.p.std[:, None], xi)
            turned = self.q.mean[:, None] + self.q.std[:, None] * self._turned(xi)
            wanted, given = self._shares(turned, tried)
            hits = _toss((wanted - given).clamp_min(0), numbers, coins)
            hit = open_ & hits.any(1)
            y = torch.where(hit[:, None], pick(tried, hits.long().argmax(1)), y)
            open_, first = open_ & ~hit, first + TRIES
        return y

    def _turned(self, xi: Tensor) -> Tensor:
        """Deviations `[B, C]` or `[B, n, C]`, their part along e the other way round."""
        e = self.e if xi.ndim == 2 else self.e[:, None]
        return torch.addcmul(xi, (e * xi).sum(-1, keepdim=True), e, value=-2)

    def _shares(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """f / p and g / p `[B, n]` at `y [B, n, C]`, the mirror image of `x [B, n, C]`."""
        p, q = (Gaussian(law.mean[:, None], law.std[:, None]) for law in (self.p, self.q))
        behind, fallen = log_ratio(p, q, torch.cat([y, x], 1)).chunk(2, 1)
        return _short(-behind), _short(fallen)


def _short(log_share: Tensor) -> Tensor:
    """Subtract a share from one; 0 at least."""
    return -torch.expm1(log_share).clamp_max(0)


def _toss(chance: Tensor, numbers: int | Tensor, coins: RoundCoins) -> Tensor:
    """True with probability `chance [B, n]`, by draws of these numbers; of no number, always."""
    chance = chance.nan_to_num(1.0)
    return coins.draw(torch.stack([chance, 1 - chance], -1), numbers) == 0
