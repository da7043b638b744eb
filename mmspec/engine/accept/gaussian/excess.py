"""Draws from what one normal law has more than another: [r p − q]+, in bounded expected work.

Equal covariances: one draw in closed form (the residual of the Γ-maximal coupling, weighted by r as
block verification needs it). Unequal diagonal ones: that residual has no closed form in several
dimensions, and drawing from p until [r − q/p]+ says yes takes the longer the nearer q is to p. Here
q is led to p in small moves whose gains have closed forms; the gain of the whole way is at most the
sum of theirs. So one of them is drawn and kept with the ratio, about once in 2 (C + 2) times at
least, unless deviations differ by orders of magnitude.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...coins import RoundCoins
from ...laws import Gaussian

_SQRT_2PI = math.sqrt(2 * math.pi)
_GAIN = 2 * math.exp(-0.5) / _SQRT_2PI  # mass gained for each unit of log a, see `Gains`
_NOTHING = 1e-12  # a residual of less mass is rounding
_FALL, _SHIFT, _STRETCH = 0, 1, 2  # what an attempt turns out to be; _STRETCH + c: coordinate c
_APART = 1 << 20  # normal numbers of different attempts are so far apart


@dataclass
class Gains:
    """Map from q to p in coordinates where q is N(0, I) and p is N(δ, diag a²).

    First the mean moves, to h = N(δ, I): [r h − q]+ is a law along e = δ/‖δ‖ and plain normal
    across. Then the deviations, one coordinate after the other: that of c grows or shrinks from 1
    to a_c, its log at an even pace, while those in front have arrived and the others wait. At every
    moment this gains where |s| is above (growing) or below (shrinking) the present deviation τ; all
    in all by φ_τ(s) − φ(s) with τ = |s| cut to [1, a_c], whose mass is 2 φ(1) |log a_c|.

    Attributes:
        weight: r `[B, K]` in (0, 1].
        shift: δ `[B, K, C]`.
        distance: ‖δ‖ `[B, K, 1]`.
        border: where r h exceeds q: from this coordinate along e on `[B, K, 1]`.
        stretch: log a `[B, K, C]`.
        masses: of a fall 1 − r, of the shift, of every stretch `[B, K, C + 2]`.
    """

    weight: Tensor
    shift: Tensor
    distance: Tensor
    border: Tensor
    stretch: Tensor
    masses: Tensor

    @classmethod
    def between(cls, p: Gaussian, q: Gaussian, weight: Tensor) -> Gains:
        """Map from `q` to `p`, both `[B, K, C]` in float64; their deviations are positive."""
        shift, stretch = (p.mean - q.mean) / q.std, (p.std / q.std).log()
        distance = shift.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        r = weight[..., None]
        border = distance / 2 - r.log() / distance
        gained = _beyond(border, r, distance).clamp_min(0)
        masses = torch.cat([1 - r, gained, r * _GAIN * stretch.abs()], -1)
        return cls(weight, shift, distance, border, stretch, masses)

    def draw(self, which: Tensor, noise: Tensor) -> Tensor:
        """A point `[B, K, C]` of the gain `which [B, K]`, from standard normal `[B, K, C + 1]`."""
        across, pace = noise[..., :-1], _upper(-noise[..., -1:])
        along = self.shift / self.distance
        place = (across * along).sum(-1, keepdim=True)
        moved = across + (self._shifted(_upper(place)) - place) * along
        # of a stretch in coordinate c: those in front have arrived, those behind wait
        c = which[..., None] - _STRETCH
        columns = torch.arange(self.shift.shape[-1], device=c.device)
        scale = torch.where(columns < c, self.stretch.exp(), 1.0)
        own, far = (each.gather(-1, c.clamp_min(0)) for each in (across, self.stretch))
        gaining = (pace * far).exp() * _ring(2 * _upper(own.abs()), far > 0)
        gaining = torch.copysign(gaining, own)
        stretched = self.shift + torch.where(columns == c, gaining, scale * across)
        return torch.where(c < 0, moved, stretched)

    def ratio(self, x: Tensor) -> Tensor:
        """[r p − q]+ over the sum of all gains at `x [B, K, C]`, `[B, K]`."""
        s = x - self.shift
        to_q = self.distance[..., 0].square() / 2 - (x * self.shift).sum(-1)  # log q / h
        to_p = _stretched(s, self.stretch)  # log p / h, coordinate by coordinate
        arrived = to_p.cumsum(-1)
        before = arrived - to_p
        inner = torch.minimum(
            torch.maximum(s.abs().log(), self.stretch.clamp_max(0)), self.stretch.clamp_min(0)
        )
        best = before + _stretched(s, inner)
        # all of them over the largest, so that none is too large for a number
        top = torch.maximum(best.amax(-1), torch.maximum(to_q, arrived[..., -1])).clamp_min(0)
        has_q = (to_q - top).exp()
        wanted = self.weight * (arrived[..., -1] - top).exp() - has_q
        shifted = (self.weight * (-top).exp() - has_q).clamp_min(0)
        stretched = ((best - top[..., None]).exp() - (before - top[..., None]).exp()).sum(-1)
        gained = shifted + self.weight * stretched
        return torch.where(gained > 0, (wanted / gained).clamp(0, 1), 1.0)

    def _shifted(self, share: Tensor) -> Tensor:
        """Find the place along e beyond which the share `[B, K, 1]` of [r h − q]+ lies.

        The density is log-concave, so that Newton's steps on the log of the share come down to the
        place from above and never pass it.
        """
        d, r = self.distance, self.weight[..., None]
        aim = share * self.masses[..., _SHIFT : _SHIFT + 1]
        place = d - torch.special.ndtri((aim / r).clamp(2.0**-1000, 1 - 2.0**-53))
        place = torch.maximum(place, self.border)
        # h and q, whose middles are d and 0, of which r and −1 is counted
        zero, goal = torch.zeros_like(d), aim.log()
        middles, counted = torch.stack([d, zero]), torch.stack([r, zero - 1])
        uppers, densities = counted / 2, counted / _SQRT_2PI
        for _ in range(16):
            s = place - middles
            left = (uppers * torch.special.erfc(s * math.sqrt(0.5))).sum(0)
            slope = (densities * (s.square() * -0.5).exp()).sum(0)
            step = (left.log() - goal) * left / slope
            place = torch.maximum(place + torch.fmin(step, zero), self.border)
        return place


def race(
    p: Gaussian,
    q: Gaussian,
    weight: Tensor,
    needed: Tensor,
    coins: RoundCoins,
    longest: bool = False,
) -> tuple[Tensor, Tensor]:
    """Entries stand with probability R / (R + 1 − r), R = ∫[r p − q]+, and are drawn from it then.

    Nobody has to know R: a fall of mass 1 − r and the gains of `Gains` are drawn in proportion to
    their masses; a fall ends the entry, a point stands with the ratio of [r p − q]+ to the gains,
    else the entry is drawn again. With r = 1 all stand: this draws from the residual. With equal
    deviations the first attempt decides.

    Args:
        p, q: normal laws `[B, K, C]` in float64.
        weight: r `[B, K]` in [0, 1].
        needed: entries that matter `[B, K]`; the others do not stand.
        coins: of verification.
        longest: of a row's entries that stand only the last matters.

    Returns:
        True for entries that stand `[B, K]`, and what was drawn of those `[B, K, C]`.
    """
    entries, size = p.mean.shape[1:]
    needed = needed & (weight > 0)
    if not needed.any():
        return torch.zeros_like(needed), torch.zeros_like(p.mean)
    r = torch.where(needed, weight, 1.0)
    noisy = (p.std > 0).all(-1)
    gains = Gains.between(_sound(p, needed & noisy), _sound(q, needed), r)
    # drawn from p as it is: a law without noise has nothing in common with q, and all of it is left
    # over; where nothing is, p = q up to rounding; and a q that is no numbers drafted nothing
    plain = ~noisy | ~(gains.masses.sum(-1) >= _NOTHING)
    either = torch.stack([1 - r, r], -1)
    either = torch.cat([either, either.new_zeros(*r.shape, size)], -1)
    masses = torch.where(plain[..., None], either, gains.masses)
    numbers = torch.arange(entries, device=r.device).expand(len(r), -1)
    undecided, stands, value = needed, torch.zeros_like(needed), torch.zeros_like(p.mean)
    attempt = 0
    while not attempt or undecided.any():
        which = coins.draw(masses, numbers + 2 * attempt * _APART)
        noise = coins.normal((entries, size + 1), (attempt + 1) * _APART)
        x = gains.draw(which, noise)
        chance = torch.where(plain, 1.0, gains.ratio(x))
        chance = torch.where(which == _FALL, 0.0, chance)
        odds = torch.stack([1 - chance, chance], -1)
        stood = coins.draw(odds, numbers + (2 * attempt + 1) * _APART) == 1
        x = q.mean + q.std * x
        x = torch.where(plain[..., None], p.mean + p.std * noise[..., :-1], x)
        stood = stood & undecided
        value = torch.where(stood[..., None], x, value)
        stands = stands | stood
        undecided = undecided & ~stood & (which != _FALL)
        if longest:
            undecided = undecided & ~stands.flip(1).cummax(1).values.flip(1)
        attempt += 1
    return stands, value


def _sound(law: Gaussian, real: Tensor) -> Gaussian:
    """The law where it is `real [B, K]`, elsewhere N(0, I)."""
    mean, std = torch.where(real[..., None], torch.stack([law.mean, law.std]), 0.0)
    return Gaussian(mean, std + (~real)[..., None])


def _upper(x: Tensor) -> Tensor:
    """The mass of a standard normal law above x."""
    return torch.special.erfc(x / math.sqrt(2)) / 2


def _beyond(place: Tensor, r: Tensor, d: Tensor) -> Tensor:
    """∫ r φ(s − d) − φ(s) over s ≥ place."""
    return r * _upper(place - d) - _upper(place)


def _stretched(s: Tensor, stretch: Tensor) -> Tensor:
    """log of N(0, a²) over N(0, 1) at s, where `stretch` is log a."""
    return s.square() / 2 * -torch.expm1(-2 * stretch) - stretch


def _ring(share: Tensor, outside: Tensor) -> Tensor:
    """The w above 1 (`outside`), else below, with w exp((1 − w²) / 2) = share.

    |w² − 1| φ(w) is what a deviation of 1 gains as it grows or shrinks, of mass w φ(w) beyond w.
    The log of the equation is concave in w: Newton's steps come from the far side and never pass.
    """
    aim = share.clamp_min(2.0**-1000).log()
    rest = 0.5 - aim
    root = (-aim).clamp_min(0).sqrt()
    w = torch.where(
        outside, 1 + math.sqrt(2) * root, torch.maximum(1 - root, share * math.exp(-0.5))
    )
    for _ in range(8):
        step = torch.addcmul(w.log() + rest, w, w, value=-0.5) / (1 / w - w)
        w = w - step.nan_to_num(0.0, 0.0, 0.0)  # at 1, where it is level, it has arrived
    return w
