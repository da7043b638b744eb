"""Means of what rules on normal laws put out, by quadrature over the shipped code."""

from __future__ import annotations

import math
from collections import defaultdict

import torch

from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import Gaussian
from mmspec.engine.proof.quadrature import branches, normal_rule, product, uniform_rule

EXACT = 1e-6


def repeated(law: Gaussian, rows: int) -> Gaussian:
    return Gaussian(law.mean.expand(rows, -1, -1), law.std.expand(rows, -1, -1))


def emitted_mean(rule, drafts, weights, p, q, noise, noise_weights, value, whole=False):
    """The mean `[F]` of `value` over drafts and all that the rule makes of them.

    A race that is open after its first attempt (unequal deviations) goes on as it began: it adds
    what its first attempt would have, had it been decided.

    Args:
        drafts: nodes `[R, N, C]` of the drafted vectors, with `weights [R]`.
        p, q: laws `[R, N + 1, C]` and `[R, N, C]`.
        noise: `[M, C]` or, for rules that race, `[M, K (C + 1)]`, with `noise_weights [M]`.
        value: of a verdict, `[rows, F]`.
        whole: one coin is tossed before the race; else one a node.
    """
    rows, nodes, size = drafts.shape
    each, entries = len(noise), max(1, noise.shape[1] // (size + 1))
    own = noise[:, :size].repeat(rows, 1)
    normals = [own, noise.repeat(rows, 1)] if noise.shape[1] > size else [own]
    before = 1 if whole else nodes
    x, *laws = (t.repeat_interleave(each, 0) for t in (drafts, p.mean, p.std, q.mean, q.std))

    def run(coins, count):
        draft = Draft(x, torch.full((count,), nodes), Gaussian(*laws[2:]))
        return rule.verify(draft, Scores(Gaussian(*laws[:2])), coins.round(0)[1])

    settled = torch.zeros(rows, 1)
    raced = defaultdict(lambda: [torch.zeros(rows, 1), torch.zeros(rows), torch.zeros(rows)])
    for verdict, coins in branches(run, normals, before + 2 * entries):
        chance = coins.probability.view(rows, each) * noise_weights
        if not chance.any():
            continue
        found, mass = 0.0, chance.sum(1)
        if not coins.cut:
            found = (chance[..., None] * value(verdict).view(rows, each, -1)).sum(1)
        if len(coins.taken) <= before:
            settled = settled + found
            continue
        part = raced[tuple(coins.taken[:before])]
        part[0] = part[0] + found
        part[1] = part[1] + mass
        part[2] = part[2] + (mass if coins.cut else 0.0)
    for found, mass, cut in raced.values():
        again = torch.where(mass > 0, mass / (mass - cut), 0.0)
        settled = settled + again[:, None] * found
    return (weights[:, None] * settled).sum(0)


def noise_rule(size, count, pace=1):
    """Nodes for the vector that a rule draws of its own, and for the pace of a race.

    The pace matters only where deviations differ; else one node will do.
    """
    return product(*[normal_rule(count, 0.0)] * size, uniform_rule(pace))


def graded(count):
    """N(0, 1) by the square of a number: a gain's point leaves the border like a root."""
    nodes, weights = normal_rule(count, 0.0)
    scaled = nodes.sign() * nodes.square() / 6
    density = (-scaled.square() / 2 + nodes.square() / 2).exp()
    return scaled, weights * density * nodes.abs() / 3


def crossings(p, q, r=1.0):
    """Where r p = q in one dimension, in deviations of q from its mean."""
    d, a = ((p.mean - q.mean) / q.std).item(), (p.std / q.std).item()
    if a == 1:
        return [d / 2 - math.log(r) / d] if d else []
    # u² − ((u − d) / a)² = 2 log (a / r)
    second, first = 1 - 1 / a**2, 2 * d / a**2
    square = first**2 + 4 * second * ((d / a) ** 2 + 2 * math.log(a / r))
    return [(-first + side * square**0.5) / (2 * second) for side in (-1, 1)]


def waves(x, frequencies):
    """exp(i s·x) `[rows, F]` of `x [rows, C]`, for `frequencies [F, C]`."""
    return (1j * (x @ frequencies.T)).exp()


def wave_means(mean, std, frequencies):
    """Their means under a normal law `[C]`."""
    return (1j * (frequencies @ mean) - ((frequencies * std) ** 2).sum(-1) / 2).exp()
