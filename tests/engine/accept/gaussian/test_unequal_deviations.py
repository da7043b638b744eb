"""Couplings of normal laws in two dimensions, each deviation its own: what is emitted follows p.

What stands, and what reflection mirrors, is integrated over drafts, cut into lines on which nothing
but a few known places is not smooth. What is drawn after a fall does not depend on the draft.
"""

from __future__ import annotations

import pytest
import torch
from gaussians import EXACT, graded, wave_means, waves
from scipy.optimize import brentq

from mmspec.engine.accept.gaussian import naive
from mmspec.engine.accept.gaussian.block import GaussianBlockRule
from mmspec.engine.accept.gaussian.gamma_maximal import GammaMaximalRule
from mmspec.engine.accept.gaussian.reflection import ReflectionRule
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import Gaussian
from mmspec.engine.proof.quadrature import branches, normal_rule, product, uniform_rule

FREQUENCIES = torch.tensor([[0.4, -0.9], [1.1, 0.3]], dtype=torch.float64)
# p and q: a mean and a deviation a coordinate. One is wider and one narrower, so that p = q on two
# branches of a hyperbola, which every line along the first coordinate crosses
LAWS = {
    "wider": ([(0.2, 0.9), (-1.0, 0.55)], [(-0.3, 0.7), (-1.0, 0.6)]),
    "narrower": ([(0.2, 0.6), (-1.0, 0.65)], [(-0.1, 0.8), (-1.0, 0.6)]),
}


def vectors(law, deviations):
    """Vectors `[R, 2]` that are so many deviations off."""
    mean, std = torch.tensor(law, dtype=torch.float64).T
    return mean + std * deviations


def verdicts(rule, p, q, x, noise, most):
    """Every branch of the rule on one drafted vector `x [R, 2]`; the bonus has the law p too."""
    tables = (torch.tensor(law, dtype=torch.float64).T[:, None, None] for law in (p, q))
    (p_mean, p_std), (q_mean, q_std) = (table.expand(-1, len(x), 2, -1) for table in tables)

    def run(coins, rows):
        draft = Draft(x[:, None], torch.ones(rows).long(), Gaussian(q_mean[:, :1], q_std[:, :1]))
        return rule.verify(draft, Scores(Gaussian(p_mean, p_std)), coins)

    return branches(run, noise, most)


def shares(p, q, x):
    """p − q at x and at its mirror image, and what is wanted of that less what is given."""
    y = naive.reflected(x, p, q)
    have, given = naive.lacking(y, p, q)
    return (
        naive.density(x, p) - naive.density(x, q),
        naive.density(y, p) - naive.density(y, q),
        have - given,
    )


def lines(p, q, law, at):
    """Nodes in deviations of `law` and their weights: lines are split where a share changes sign.

    Args:
        at: of deviations (v, w), the vector whose `shares` matter.
    """
    nodes, weights = [], []
    positions = [n / 20 - 6 for n in range(241)]
    for w, weight in zip(*(each.tolist() for each in normal_rule(72)), strict=True):
        splits = []
        table = [shares(p, q, at(v, w)) for v in positions]
        for k in range(3):

            def share(v, k=k, w=w):
                return shares(p, q, at(v, w))[k]

            for a, b, low, high in zip(positions, positions[1:], table, table[1:], strict=False):
                if low[k] * high[k] < 0:
                    splits.append(brentq(share, a, b))
        first, own = normal_rule(16, *splits)
        nodes.append(torch.stack([first, torch.full_like(first, w)], 1))
        weights.append(weight * own)
    return torch.cat(nodes), torch.cat(weights)


def off(law, v, w):
    (a, b), (c, d) = law
    return [a + b * v, c + d * w]


def settled(rule, p, q, most):
    """Mean waves of what stands, and of what reflection mirrors, and the share that does."""
    nodes, weights = lines(p, q, q, lambda v, w: off(q, v, w))
    x = vectors(q, nodes)
    found, share = 0.0, 0.0
    for verdict, coins in verdicts(rule, p, q, x, [torch.zeros_like(x)], most):
        if not coins.cut:
            chance = coins.probability * weights
            found = found + (chance[:, None] * waves(verdict.emitted[:, 0], FREQUENCIES)).sum(0)
            share += chance.sum().item()
    return found, share


@pytest.mark.parametrize("name", LAWS)
def test_reflection(name):
    """What is lacking is drawn by trying: here it is integrated in plain numbers."""
    p, q = LAWS[name]
    found, share = settled(ReflectionRule(), p, q, 2)
    # y is the mirror image of x: where y is, x has as many deviations, turned round
    mirror = naive.mirrored
    nodes, weights = lines(p, q, p, lambda v, w: off(q, *mirror([v, w], p, q)))
    y = vectors(p, nodes)
    lacks = [
        max(0.0, have - given) / naive.density(point, p)
        for point in y.tolist()
        for have, given in [naive.lacking(point, p, q)]
    ]
    rest = weights * torch.tensor(lacks, dtype=torch.float64)
    assert rest.sum() > 1e-2
    assert abs(share + rest.sum().item() - 1) < EXACT
    total = found + (rest[:, None] * waves(y, FREQUENCIES)).sum(0)
    wanted = wave_means(*torch.tensor(p, dtype=torch.float64).T, FREQUENCIES)
    assert (total - wanted).abs().max() < EXACT


@pytest.mark.slow
@pytest.mark.parametrize("rule", [GammaMaximalRule(), GaussianBlockRule()])
@pytest.mark.parametrize("name", LAWS)
def test_by_density(name, rule):
    """Acceptance is 1 − TV, and the race goes on as it began."""
    p, q = LAWS[name]
    found, share = settled(rule, p, q, 1)
    noise, weights = product(graded(120), graded(120), uniform_rule(6))
    x = vectors(q, torch.tensor([[-1.5, 0.3]], dtype=torch.float64)).expand(len(noise), -1)
    assert naive.density(x[0].tolist(), p) < naive.density(x[0].tolist(), q)  # it may fall
    drawn, mass = 0.0, 0.0
    for verdict, coins in verdicts(rule, p, q, x, [torch.zeros_like(x), noise], 3):
        if coins.taken[0] == 0 and not coins.cut:
            chance = coins.probability * weights
            drawn = drawn + (chance[:, None] * waves(verdict.emitted[:, 0], FREQUENCIES)).sum(0)
            mass += chance.sum().item()
    total = found + (1 - share) * drawn / mass
    wanted = wave_means(*torch.tensor(p, dtype=torch.float64).T, FREQUENCIES)
    assert (total - wanted).abs().max() < EXACT
