"""Draws from [r p − q]+: gains have the densities they claim and, with the ratio, sum up to it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from gaussians import EXACT, graded
from scipy.integrate import quad

from mmspec.engine.accept.gaussian import naive
from mmspec.engine.accept.gaussian.excess import Gains, race
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.laws import Gaussian
from mmspec.engine.proof.quadrature import QuadratureCoins, product, uniform_rule

LAWS = {  # p and q: a mean and a deviation a coordinate
    "equal": ([(0.2, 0.7)], [(-0.3, 0.7)]),
    "wider": ([(0.2, 0.9)], [(-0.3, 0.7)]),
    "narrower": ([(0.2, 0.4)], [(0.2, 0.7)]),
    "two": ([(0.2, 0.9), (-1.0, 0.5)], [(-0.3, 0.7), (-0.8, 0.9)]),
    "three": ([(0.2, 0.71), (-1.0, 0.5), (0.0, 2.0)], [(0.1, 0.7), (-1.1, 0.52), (0.1, 2.1)]),
    "far": ([(5.0, 0.1), (0.0, 3.0)], [(0.0, 2.0), (0.0, 0.1)]),
}


def entry(law, rows=1):
    table = torch.tensor(law, dtype=torch.float64)[None, None].expand(rows, -1, -1, -1)
    return Gaussian(table[..., 0], table[..., 1])


def gains(p, q, r, rows=1):
    return Gains.between(
        entry(p, rows), entry(q, rows), torch.full((rows, 1), r, dtype=torch.float64)
    )


def phi(x, std=1.0):
    return math.exp(-((x / std) ** 2) / 2) / (std * math.sqrt(2 * math.pi))


def density(which, x, p, q, r):
    """What move `which` gains at x, where q is standard, by the text of `Gains` in plain numbers.

    1 is the shift; 1 + c is the stretch of coordinate c, from 1.
    """
    shift = [(a - b) / std for (a, _), (b, std) in zip(p, q, strict=True)]
    scale = [a / b for (_, a), (_, b) in zip(p, q, strict=True)]
    s = [v - d for v, d in zip(x, shift, strict=True)]
    if which == 1:
        return max(0.0, r * math.prod(map(phi, s)) - math.prod(map(phi, x)))
    own = which - 2
    front = math.prod(phi(v, a) for v, a in zip(s[:own], scale[:own], strict=True))
    behind = math.prod(phi(v) for v in s[own + 1 :])
    low, high = min(1.0, scale[own]), max(1.0, scale[own])
    return r * front * behind * (phi(s[own], min(max(abs(s[own]), low), high)) - phi(s[own]))


@pytest.mark.parametrize("r", [1.0, 0.8])
@pytest.mark.parametrize("name", LAWS)
def test_ratio_completes_the_gains(name, r):
    """Gains times ratio is [r p − q]+, at points all over the place."""
    p, q = LAWS[name]
    whitened = torch.randn(60, 1, len(p), generator=torch.Generator().manual_seed(1)).double() * 2
    ratio = gains(p, q, r, len(whitened)).ratio(whitened)
    for x, found in zip(whitened[:, 0].tolist(), ratio[:, 0].tolist(), strict=True):
        gained = sum(density(which, x, p, q, r) for which in range(1, len(p) + 2))
        place = [mean + std * v for v, (mean, std) in zip(x, q, strict=True)]
        volume = math.prod(std for _, std in q)
        assert 0 <= found <= 1
        assert found * gained == pytest.approx(naive.residual(place, p, q, r) * volume, abs=1e-12)


def mass_and_wave(which, p, q, r):
    """Mass and unnormalized mean of exp(1.3 i x) of a gain in one dimension."""
    d, a = (p[0][0] - q[0][0]) / q[0][1], p[0][1] / q[0][1]
    splits = [d - a, d + a, d - 1, d + 1, d, d / 2 - math.log(r) / d if d else 0.0]

    def integral(f):
        edges = [-12.0, *sorted(splits), 12.0]
        return sum(
            quad(lambda x: f(x) * density(which, [x], p, q, r), *pair, epsabs=1e-11)[0]
            for pair in itertools.pairwise(edges)
        )

    return (
        integral(lambda x: 1),
        integral(lambda x: math.cos(1.3 * x)),
        integral(lambda x: math.sin(1.3 * x)),
    )


@pytest.mark.parametrize("r", [1.0, 0.8])
@pytest.mark.parametrize("name", ["equal", "wider", "narrower"])
def test_draws_follow_their_density(name, r):
    p, q = LAWS[name]
    noise, weights = product(graded(60), uniform_rule(16))
    moves = gains(p, q, r, len(noise))
    for which in (1, 2):
        if moves.masses[0, 0, which] == 0:
            continue
        x = moves.draw(torch.full((len(noise), 1), which), noise[:, None])[:, 0, 0]
        mass, real, imaginary = mass_and_wave(which, p, q, r)
        assert moves.masses[0, 0, which].item() == pytest.approx(mass, abs=1e-9)
        assert (weights * (1.3 * x).cos()).sum().item() == pytest.approx(real / mass, abs=EXACT)
        assert (weights * (1.3 * x).sin()).sum().item() == pytest.approx(
            imaginary / mass, abs=EXACT
        )


def test_draws_in_several_dimensions():
    """Along the shift the law of one dimension, plain normal across; stretches coordinate-wise."""
    p, q = LAWS["two"]
    noise, weights = product(graded(24), graded(24), uniform_rule(8))
    moves = gains(p, q, 1.0, len(noise))
    shift, scale = moves.shift[0, 0], moves.stretch[0, 0].exp()
    drawn = [moves.draw(torch.full((len(noise), 1), w), noise[:, None])[:, 0] for w in (1, 2, 3)]
    e = shift / shift.norm()
    across = drawn[0] @ torch.stack([-e[1], e[0]])
    assert (weights * across.square()).sum().item() == pytest.approx(1, abs=1e-5)
    assert ((drawn[0] @ e) >= shift.norm() / 2).all()
    s = [x - shift for x in drawn]
    assert (weights * s[1][:, 1].square()).sum().item() == pytest.approx(1, abs=1e-5)  # waits
    arrived = (weights * s[2][:, 0].square()).sum().item()
    assert arrived == pytest.approx(scale[0].item() ** 2, abs=1e-5)
    assert (s[1][:, 0].abs() >= 1).all()  # grows: gains outside
    assert (s[2][:, 1].abs() <= 1).all()  # shrinks: gains inside


@pytest.mark.parametrize("r", [1.0, 0.7])
@pytest.mark.parametrize("name", LAWS)
def test_race_is_made_of_the_gains(name, r):
    """Every branch of the first attempt: its probability and what it draws."""
    p, q = LAWS[name]
    noise = torch.randn(7, len(p) + 1, generator=torch.Generator().manual_seed(2)).double()
    moves, rows = gains(p, q, r, 7), len(noise)
    scale, place = (torch.tensor(q, dtype=torch.float64)[:, i] for i in (1, 0))
    total, pending = torch.zeros(rows), [()]
    while pending:
        coins = QuadratureCoins(pending.pop(), [noise], 2)
        weight, needed = (
            torch.full((rows, 1), r, dtype=torch.float64),
            torch.ones(rows, 1, dtype=torch.bool),
        )
        stands, value = race(entry(p, rows), entry(q, rows), weight, needed, coins)
        pending += coins.pending
        which, stood = coins.taken
        x = moves.draw(torch.full((rows, 1), which), noise[:, None])
        chance = moves.ratio(x)[:, 0] if which else torch.zeros(rows).double()
        share = moves.masses[:, 0, which] / moves.masses[:, 0].sum(-1)
        assert torch.allclose(coins.probability, share * (chance if stood else 1 - chance))
        if coins.probability.max() > 0:
            assert coins.cut == (which > 0 and not stood)
            assert stands.all() == bool(stood)
            if stood:
                assert torch.allclose(value[:, 0], place + scale * x[:, 0])
        total = total + coins.probability
    assert torch.allclose(total, torch.ones(rows).double())


@pytest.mark.parametrize("name", LAWS)
def test_an_attempt_decides_often(name):
    """At least once in 2 (C + 2) attempts, whatever the laws and the weight."""
    p, q = LAWS[name]
    rows = 400
    for r in (1.0, 0.99, 0.5):
        moves = gains(p, q, r, rows)
        coins = ProductionCoins(list(range(rows))).round(0)[1]
        which = coins.draw(moves.masses)
        chance = moves.ratio(moves.draw(which, coins.normal((1, len(p) + 1))))
        decided = torch.where(which == 0, 1.0, chance).mean().item()
        assert decided > 1 / (2 * (len(p) + 2))


def test_nothing_left_over_is_p_itself():
    """p = q: a fall has probability 0, and one that rounding makes gets a draw from p."""
    law = entry([(0.2, 0.7), (3.0, 0.1)], 3)
    needed = torch.tensor([[True], [True], [False]])
    stands, value = race(
        law, law, torch.ones(3, 1).double(), needed, ProductionCoins([1, 2, 3]).round(0)[1]
    )
    assert stands.tolist() == needed.tolist()
    assert ((value[:2] - law.mean[:2]).abs() < 6 * law.std[:2]).all()
    assert (value[:2] != law.mean[:2]).all()


def test_a_law_without_noise_is_emitted_as_it_is():
    p, q = entry([(0.2, 0.0), (3.0, 0.5)], 2), entry([(0.0, 1.0), (3.0, 0.5)], 2)
    needed = torch.ones(2, 1, dtype=torch.bool)
    stands, value = race(
        p, q, torch.ones(2, 1).double(), needed, ProductionCoins([1, 2]).round(0)[1]
    )
    assert stands.all()
    assert (value[..., 0] == 0.2).all()
    assert (value[..., 1] != 3.0).all()


def test_filling_does_not_matter():
    """Entries that nobody asked for may hold anything; no row looks at its neighbours."""
    p, q = LAWS["three"]
    laws = [entry(law, 6) for law in (p, q)]
    weight = torch.full((6, 1), 0.9).double()
    coins = ProductionCoins([1, 2, 3, 4, 5, 6])
    needed = torch.tensor([True, False] * 3)[:, None]
    all_stand, all_value = race(*laws, weight, torch.ones_like(needed), coins.round(0)[1])
    for law in laws:
        law.mean = torch.where(needed[..., None], law.mean, torch.nan)
        law.std = torch.where(needed[..., None], law.std, torch.nan)
    weight = torch.where(needed, weight, torch.nan)
    stands, value = race(*laws, weight, needed, coins.round(0)[1])
    assert torch.equal(stands, all_stand & needed)
    assert torch.equal(value[stands], all_value[stands])
