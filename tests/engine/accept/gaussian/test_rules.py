"""Couplings of normal laws are exact: what the shipped code emits, by quadrature, follows p."""

from __future__ import annotations

import pytest
import torch
from gaussians import (
    EXACT,
    crossings,
    emitted_mean,
    noise_rule,
    repeated,
    wave_means,
    waves,
)
from scipy.special import ndtr

from benchmarks.toy_chains import LinearGaussian
from mmspec.engine.accept.gaussian import block as gaussian_block
from mmspec.engine.accept.gaussian import naive
from mmspec.engine.accept.gaussian.block import GaussianBlockRule
from mmspec.engine.accept.gaussian.excess import race
from mmspec.engine.accept.gaussian.gamma_maximal import GammaMaximalRule
from mmspec.engine.accept.gaussian.reflection import ReflectionRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import Gaussian
from mmspec.engine.proof.quadrature import normal_rule, product

RULES = {
    "reflection": ReflectionRule,
    "gamma-maximal": GammaMaximalRule,
    "gaussian-block": GaussianBlockRule,
}
ONE = torch.tensor([[0.3], [-1.1], [2.4]], dtype=torch.float64)
TWO = torch.tensor([[0.4, -0.9], [1.1, 0.3]], dtype=torch.float64)


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def one_step(rule, p, q, drafts, weights, frequencies, noise):
    """Mean waves of the first emitted vector, and acceptance; drafts `[R, C]` in q's deviations."""
    rows, size = drafts.shape
    both = Gaussian(torch.stack([p.mean, p.mean + 1]), torch.stack([p.std, p.std]))
    laws = [repeated(both, rows), repeated(Gaussian(q.mean[None], q.std[None]), rows)]

    def value(verdict):
        first = waves(verdict.emitted[:, 0], frequencies)
        return torch.cat([first, verdict.accepted[:, None].to(first)], 1)

    if isinstance(rule, ReflectionRule):  # it draws no pace
        noise = noise[0][:, :size], noise[1]
    x = (q.mean + q.std * drafts)[:, None]
    *found, accepted = emitted_mean(rule, x, weights, *laws, *noise, value)
    return torch.stack(found), accepted.real.item()


@pytest.mark.parametrize("distance", [0.0, 0.02, 1.3, -6.0])
@pytest.mark.parametrize("name", RULES)
def test_one_dimension(name, distance):
    """Law and acceptance of the emitted vector; acceptance is 2 Φ(−‖z‖ / 2) = 1 − TV."""
    p, q = Gaussian(vector(0.2), vector(0.7)), Gaussian(vector(0.2 - 0.7 * distance), vector(0.7))
    drafts, weights = normal_rule(24, *crossings(p, q))
    noise = noise_rule(1, 16)
    found, accepted = one_step(RULES[name](), p, q, drafts[:, None], weights, ONE, noise)
    assert (found - wave_means(p.mean, p.std, ONE)).abs().max() < EXACT
    assert abs(accepted - 2 * ndtr(-abs(distance) / 2)) < EXACT


@pytest.mark.parametrize(("shift", "ratio"), [(0.0, 1.3), (0.4, 1.02), (-0.4, 0.9), (2.0, 0.5)])
@pytest.mark.parametrize("name", ["gamma-maximal", "gaussian-block"])
def test_acceptance_with_unequal_deviations(name, shift, ratio):
    """1 − TV; what falls is the race's, see `test_excess`."""
    p, q = Gaussian(vector(0.2), vector(0.7)), Gaussian(vector(0.2 - shift), vector(0.7 / ratio))
    drafts, weights = normal_rule(24, *crossings(p, q))
    any_noise = torch.full((1, 2), 0.5, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    _, accepted = one_step(RULES[name](), p, q, drafts[:, None], weights, ONE, any_noise)
    more = naive.mass([(0.2, 0.7)], [(0.2 - shift, 0.7 / ratio)], 1.0)
    assert abs(accepted - (1 - more)) < EXACT


def turned(drafts, along):
    """Drafts `[R, 2]` whose first number is along `along`."""
    e = along / along.norm()
    return drafts[:, :1] * e + drafts[:, 1:] * torch.stack([-e[1], e[0]])


@pytest.mark.parametrize("name", RULES)
def test_behind_a_step_without_noise(name):
    """The target's law is a point: no draft stands, and the point is what is emitted."""
    rows, x = 64, torch.randn(64, 1, 2, generator=torch.Generator().manual_seed(0)).double()
    point, noisy = vector(0.3, -0.2), torch.ones(rows, 2, 2, dtype=torch.float64)
    noisy[:, 0] = 0
    p = Gaussian(point.expand(rows, 2, 2), noisy)
    draft = Draft(x, torch.ones(rows).long(), Gaussian(torch.zeros_like(x), torch.ones_like(x)))
    coins = ProductionCoins(list(range(rows))).round(0)[1]
    verdict = RULES[name]().verify(draft, Scores(p), coins)
    assert not verdict.accepted.any()
    assert torch.allclose(verdict.emitted[:, 0], point, atol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_two_dimensions(name):
    p = Gaussian(vector(0.2, -1.0), vector(0.7, 1.4))
    z = vector(0.6, -0.9)
    q = Gaussian(p.mean - p.std * z, p.std)
    nodes, weights = product(normal_rule(12, z.norm().item() / 2), normal_rule(20))
    found, accepted = one_step(
        RULES[name](), p, q, turned(nodes, z), weights, TWO, noise_rule(2, 10)
    )
    assert (found - wave_means(p.mean, p.std, TWO)).abs().max() < EXACT
    assert abs(accepted - 2 * ndtr(-z.norm().item() / 2)) < EXACT


# --- several steps: the chain goes on as the target's own would -----------------------------------

STEPS, DONE = 4, 1
TARGET = LinearGaussian(
    torch.tensor([[0.9], [1.1], [0.8], [0.7]], dtype=torch.float64),
    torch.tensor([[0.1], [-0.2], [0.3], [0.5]], dtype=torch.float64),
    torch.tensor([[0.0], [0.5], [0.8], [1.1]], dtype=torch.float64),
)
OTHER = LinearGaussian(TARGET.gain * 0.9, TARGET.pull + 0.2, TARGET.std)
CONDITION = vector(0.7)
TIMES = torch.tensor([[0.6, -0.8, 1.1], [1.3, 0.9, -0.4]], dtype=torch.float64)  # of 3 steps left


def outlook(states, done):
    """E exp(i s·x) of all steps left, where those in `states [rows, k]` are known: closed form."""
    known = states.shape[1] - 1
    total = (1j * (states[:, 1:] @ TIMES[:, :known].T)).exp()
    if known == TIMES.shape[1]:
        return total
    rest = TIMES[:, known:]
    path = TARGET.mean_path(states[:, -1:], CONDITION, done + known)[..., 0]
    spread = torch.einsum("fi,ij,fj->f", rest, TARGET.covariance(done + known)[..., 0], rest)
    return total * (1j * (path @ rest.T) - spread / 2).exp()


def chain(x0, first, second):
    """Drafts of two steps behind x0 with the laws on both sides; nodes are in deviations of q."""
    rows = len(first)
    condition = CONDITION.expand(rows, 1)
    x = [torch.full((rows, 1), x0, dtype=torch.float64)]
    laws = {TARGET: [], OTHER: []}
    for n, nodes in enumerate((first, second, None)):
        t = torch.full((rows,), STEPS - 1 - DONE - n)
        for model, found in laws.items():
            found.append(model.step(x[-1], t, condition))
        if nodes is not None:
            mean, std = laws[OTHER][-1]
            x.append(mean + std * nodes[:, None])
    p, q = (
        Gaussian(*(torch.stack(each, 1) for each in zip(*laws[m][:n], strict=True)))
        for m, n in ((TARGET, 3), (OTHER, 2))
    )
    return torch.stack(x[1:], 1), p, q


def split_nodes(x0, block):
    """Nodes of two steps, split where a coin reaches 1, which in the second the first decides."""

    def splits(p, q, n, level):
        z = ((p.mean[:, :2] - q.mean) / q.std)[0, n, 0].item()
        return (z**2 / 2 - level) / z, z

    nowhere = vector(0.0)
    _, p, q = chain(x0, nowhere, nowhere)
    border, z = splits(p, q, 0, 0.0)
    nodes, weights = [], []
    for node, weight in zip(*normal_rule(14, border), strict=True):
        _, p, q = chain(x0, node[None], nowhere)
        level = min(0.0, z * node.item() - z**2 / 2)  # log r_1
        borders = [splits(p, q, 1, 0.0)[0]]
        if block and level < 0:
            borders.append(splits(p, q, 1, level)[0])
        second, more = normal_rule(14, *borders)
        nodes.append(torch.stack([node.expand_as(second), second], 1))
        weights.append(weight * more)
    return torch.cat(nodes), torch.cat(weights)


def kept_states(verdict, x0):
    """What a verdict makes of the chain, `[rows, accepted + 2]`, one length for all rows."""
    accepted = verdict.accepted.unique()
    assert len(accepted) == 1
    start = torch.full((len(verdict.emitted), 1), x0, dtype=torch.float64)
    return torch.cat([start, verdict.emitted[:, : accepted + 1, 0]], 1)


def two_steps(rule, x0, value):
    """The mean of a verdict's `value` over two drafted steps."""
    block = isinstance(rule, GaussianBlockRule)
    nodes, weights = split_nodes(x0, block)
    drafts, p, q = chain(x0, *nodes.T)
    noise, noise_weights = noise_rule(1, 14)
    if block:  # a race of two entries draws for both
        noise = noise.repeat(1, 2)
    elif isinstance(rule, ReflectionRule):  # it draws no pace
        noise = noise[:, :1]
    return emitted_mean(rule, drafts, weights, p, q, noise, noise_weights, value, block)


@pytest.mark.parametrize("x0", [0.4, -2.0])
@pytest.mark.parametrize("name", RULES)
def test_a_round_keeps_the_law_of_the_whole_chain(name, x0):
    """Whatever a round leaves, what the target makes of it has the mean it had before the round.

    So it has behind any number of rounds: the joint law of all steps is the target's.
    """
    rule = RULES[name]()

    def value(verdict):
        return outlook(kept_states(verdict, x0), DONE)

    before = outlook(torch.full((1, 1), x0, dtype=torch.float64), DONE)[0]
    after = two_steps(rule, x0, value)
    assert (after - before).abs().max() < EXACT


@pytest.mark.parametrize("x0", [0.4, -2.0])
def test_a_block_keeps_more(x0):
    def kept(verdict):
        return verdict.accepted[:, None].double()

    block, in_turn = (two_steps(rule(), x0, kept) for rule in (GaussianBlockRule, GammaMaximalRule))
    assert block > in_turn + 1e-3


def test_the_unweighted_residual_would_be_seen(monkeypatch):
    """A hazard of block verification: [p − q]+ in place of [r p − q]+."""

    def unweighted(p, q, weight, needed, coins, longest):
        right, _ = race(p, q, weight, needed, coins, longest)
        coins._normals = [noise_rule(1, 14)[0].repeat(len(weight) // 28, 2)]
        coins._most += 4
        _, plain = race(p, q, torch.ones_like(weight), needed, coins, longest)
        return right, plain

    monkeypatch.setattr(gaussian_block, "race", unweighted)
    before = outlook(torch.full((1, 1), 0.4, dtype=torch.float64), DONE)[0]
    after = two_steps(GaussianBlockRule(), 0.4, lambda v: outlook(kept_states(v, 0.4), DONE))
    assert (after - before).abs().max() > 100 * EXACT
