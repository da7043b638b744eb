"""Reflection with deviations of its own on either side: the mirror image, and what it lacks."""

from __future__ import annotations

import math

import pytest
import torch
from gaussians import EXACT, wave_means, waves
from scipy.integrate import quad
from scipy.optimize import brentq

from mmspec.engine.accept.gaussian import naive, reflection
from mmspec.engine.accept.gaussian.reflection import Mirror, ReflectionRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import Gaussian
from mmspec.engine.proof.quadrature import branches, normal_rule

FREQUENCIES = torch.tensor([[0.3], [-1.1], [2.4]], dtype=torch.float64)
LAWS = {  # p and q: a mean and a deviation a coordinate
    "wider": ([(0.2, 0.9)], [(-0.3, 0.7)]),
    "narrower": ([(0.2, 0.4)], [(0.2, 0.7)]),
    "nearly": ([(0.2, 0.7)], [(0.0, 0.71)]),
    "far": ([(3.0, 0.5)], [(-1.0, 0.8)]),
    "two": ([(0.2, 0.9), (-1.0, 0.5)], [(-0.3, 0.7), (-0.8, 0.9)]),
    "three": ([(0.2, 0.71), (-1.0, 0.5), (0.0, 2.0)], [(0.1, 0.7), (-1.1, 0.52), (0.1, 2.1)]),
}


def table(law, rows=1):
    """A law as tensors `[rows, C]`."""
    mean, std = torch.tensor(law, dtype=torch.float64).T
    return Gaussian(mean.expand(rows, -1), std.expand(rows, -1))


def verify(x, p, q, coins):
    """The rule on one drafted vector `x [R, C]`."""
    rows = len(x)
    p, q = table(p, rows), table(q, rows)
    both = Gaussian(torch.stack([p.mean] * 2, 1), torch.stack([p.std] * 2, 1))
    draft = Draft(x[:, None], torch.ones(rows).long(), Gaussian(q.mean[:, None], q.std[:, None]))
    return ReflectionRule().verify(draft, Scores(both), coins)


def kinks(p, q):
    """Deviations of q at which anything about a drafted number is not smooth."""

    def draw(v):
        return [q[0][0] + q[0][1] * v]

    def more(v):
        return naive.density(draw(v), p) - naive.density(draw(v), q)

    def wanted(v):
        y = naive.reflected(draw(v), p, q)
        return naive.density(y, p) - naive.density(y, q)

    def enough(v):
        have, given = naive.lacking(naive.reflected(draw(v), p, q), p, q)
        return have - given

    positions = [n / 50 - 6 for n in range(601)]
    found = []
    for f in (more, wanted, enough):
        values = [f(v) for v in positions]
        for a, b, low, high in zip(positions, positions[1:], values, values[1:], strict=False):
            if low * high < 0:
                found.append(brentq(f, a, b))
    return found


@pytest.mark.parametrize("name", ["wider", "narrower", "nearly", "far"])
def test_law_in_one_dimension(name):
    """What stands and what is mirrored, by the shipped code, and what is lacking, by plain numbers,
    make up p.
    """
    p, q = LAWS[name]
    nodes, weights = normal_rule(24, *kinks(p, q))
    x = q[0][0] + q[0][1] * nodes[:, None]
    own = torch.zeros(len(x), 1, dtype=torch.float64)
    found, settled = 0.0, torch.zeros(len(x), dtype=torch.float64)
    for verdict, coins in branches(lambda c, _: verify(x, p, q, c), [own], 2):
        if not coins.cut:
            chance = coins.probability * weights
            found = found + (chance[:, None] * waves(verdict.emitted[:, 0], FREQUENCIES)).sum(0)
            settled = settled + coins.probability
    edges = sorted(naive.reflected([q[0][0] + q[0][1] * v], p, q)[0] for v in kinks(p, q))
    low, high = p[0][0] - 9 * p[0][1], p[0][0] + 9 * p[0][1]

    def lacks(y, part):
        have, given = naive.lacking([y], p, q)
        return max(0.0, have - given) * part

    for i, (frequency,) in enumerate(FREQUENCIES.tolist()):
        for wave, unit in ((torch.cos, 1), (torch.sin, 1j)):

            def f(y, wave=wave, frequency=frequency):
                return lacks(y, float(wave(torch.tensor(frequency * y, dtype=torch.float64))))

            found[i] += unit * quad(f, low, high, points=edges, epsabs=1e-9, limit=400)[0]
    mean, std = (torch.tensor([v], dtype=torch.float64) for v in p[0])
    assert (found - wave_means(mean, std, FREQUENCIES)).abs().max() < EXACT
    assert (settled < 1 - 1e-4).any()  # something was lacking


class Spy:
    """Verification coins that note the chances of tosses; the first of them fail."""

    def __init__(self, coins, failing=1):
        self.coins, self.failing, self.chances, self.noise = coins, failing, [], []

    def draw(self, weights, index=0):
        self.chances.append(weights[..., 0])
        drawn = self.coins.draw(weights, index)
        return torch.ones_like(drawn) if len(self.chances) <= self.failing else drawn

    def normal(self, shape, index=0):
        self.noise.append(self.coins.normal(shape, index))
        return self.noise[-1]


@pytest.mark.parametrize("name", LAWS)
def test_chances_equal_naive(name):
    """Of the mirror image, and of every vector that is tried in its place."""
    p, q = LAWS[name]
    rows = 6
    mine, drafted = table(p, rows), table(q, rows)
    noise = torch.randn(rows, len(p), generator=torch.Generator().manual_seed(1)).double()
    x, coins = drafted.mean + drafted.std * noise, Spy(ProductionCoins([*range(rows)]).round(0)[1])
    Mirror(mine, drafted).draw(x, torch.ones(rows, dtype=torch.bool), coins)
    mirrored, tried = coins.chances[:2]
    for row in range(rows):
        have, given = naive.lacking(naive.reflected(x[row].tolist(), p, q), p, q)
        if given:  # else it would not have fallen
            assert mirrored[row, 0].item() == pytest.approx(min(1.0, have / given), abs=1e-8)
        for n, xi in enumerate(coins.noise[0][row].tolist()):
            y = [mean + std * v for v, (mean, std) in zip(xi, p, strict=True)]
            have, given = naive.lacking(y, p, q)
            chance = max(0.0, have - given) / naive.density(y, p)
            assert tried[row, n].item() == pytest.approx(chance, abs=1e-8)


def test_it_does_not_matter_how_many_are_tried_at_a_time(monkeypatch):
    p, q = LAWS["two"]
    rows = 300
    drafts = torch.randn(rows, 2, generator=torch.Generator().manual_seed(2)).double()
    x = table(q, rows).mean + table(q, rows).std * drafts
    emitted = []
    for tries in (1, 7, 32):
        monkeypatch.setattr(reflection, "TRIES", tries)
        emitted.append(verify(x, p, q, ProductionCoins([*range(rows)]).round(0)[1]).last)
    assert torch.equal(emitted[0], emitted[1])
    assert torch.equal(emitted[0], emitted[2])


@pytest.mark.parametrize("name", ["two", "three"])
def test_moments_in_several_dimensions(name):
    """Means and products of what is emitted, within five standard errors."""
    p, q = LAWS[name]
    rows = 10_000
    coins = ProductionCoins([*range(rows)])
    drafts = coins.round(1)[0].normal((len(p),))
    x = table(q, rows).mean + table(q, rows).std * drafts
    verdict = verify(x, p, q, coins.round(0)[1])
    first = torch.where(verdict.accepted[:, None] > 0, x, verdict.last[:, 0])
    z = (first - table(p).mean) / table(p).std
    moments = torch.cat([z, z.square() - 1, (z[:, :1] * z[:, 1:])], 1)
    errors = moments.mean(0) / (moments.std(0) / rows**0.5)
    assert errors.abs().max() < 5


@pytest.mark.parametrize(
    ("dtype", "ratio", "equal"),
    [
        (torch.float64, 1 + 5e-6, False),
        (torch.float64, 1 + 1e-12, False),
        (torch.float64, 1 - 1e-15, True),
        (torch.float32, 1 + 5e-6, False),
        (torch.float32, 1 - 5e-7, True),
    ],
)
def test_deviations_are_equal_up_to_rounding_alone(dtype, ratio, equal):
    """Of the laws as they were given: in double precision 5e-6 is a difference."""
    x = torch.tensor([[[0.3]], [[2.9]]], dtype=dtype)
    p, q = (
        Gaussian(torch.full((2, n, 1), 0.2, dtype=dtype), torch.full((2, n, 1), std, dtype=dtype))
        for n, std in ((2, 0.7), (1, 0.7 * ratio))
    )
    coins = Asked(ProductionCoins([1, 2]).round(0)[1])
    ReflectionRule().verify(Draft(x, torch.ones(2).long(), q), Scores(p), coins)
    mine, other = ([(law.mean[0, 0].item(), law.std[0, 0].item())] for law in (p, q))
    for row in range(2):
        value = x[row, 0].tolist()
        wanted = 0.0 if equal else math.log(naive.density(value, mine))
        wanted -= 0.0 if equal else math.log(naive.density(value, other))
        assert coins.asked[row, 0].log().item() == pytest.approx(wanted, rel=1e-3, abs=1e-15)


class Asked:
    """Verification coins that note the ratios that they are asked for."""

    def __init__(self, coins):
        self.coins = coins

    def accept(self, prob, lengths):
        self.asked = prob
        return self.coins.accept(prob, lengths)

    def __getattr__(self, name):
        return getattr(self.coins, name)


def test_what_has_no_noise_or_no_numbers_ends():
    p, q = [(0.2, 0.0), (3.0, 0.5)], [(0.0, 1.0), (3.0, 0.6)]
    x = torch.tensor([[0.3, 3.1], [5.0, 2.0]], dtype=torch.float64)
    verdict = verify(x, p, q, ProductionCoins([1, 2]).round(0)[1])
    assert (verdict.last[:, 0, 0] == 0.2).all()
    nowhere = [(float("nan"), 0.5), (3.0, 0.5)]
    verdict = verify(x, nowhere, q, ProductionCoins([1, 2]).round(0)[1])
    assert verdict.accepted.tolist() == [0, 0]
