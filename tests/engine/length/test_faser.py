"""FASER's lengths: the formula against brute force, what load does to them, and their law."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
import torch

from mmspec.engine.draft import Context, Draft
from mmspec.engine.laws import OneHot
from mmspec.engine.length.faser import FaserLength, best_lengths
from mmspec.engine.length.goodput import PATIENCE, Experience, GoodputLength
from mmspec.engine.length.round_costs import _ERROR, _MOST, _NOISE, RoundCosts

PROFILE = [1.0, 1.3, 1.5, 1.9]


def told(policy, drafted, accepted, seconds=0.0, finished=()):
    context = Context.empty(len(drafted), 1)
    context.finished = list(finished) or context.finished
    context.reached, context.accepted, context.seconds = drafted, accepted, seconds
    context.emitted = [kept + 1 for kept in accepted]
    tokens = torch.zeros(len(drafted), max(drafted)).long()
    policy.observe(context, Draft(tokens, torch.tensor(drafted), OneHot()), None)


def process(rounds, at):
    """Mean and deviation of a Gaussian process, as in a textbook: every round by itself."""

    def kernel(a, b):
        x, y = ([math.log2(n) for n in (load[0], 1 + load[1], load[2])] for load in (a, b))
        return _ERROR**2 * math.exp(-sum((u - v) ** 2 for u, v in zip(x, y, strict=True)) / 2)

    loads = [load for load, _ in rounds]
    gram = np.array([[kernel(a, b) for b in loads] for a in loads]) + _NOISE**2 * np.eye(len(loads))
    across = np.array([kernel(a, at) for a in loads])
    weights = np.linalg.inv(gram) @ across
    return weights @ [y for _, y in rounds], math.sqrt(_ERROR**2 - across @ weights)


def some_rounds(seed, count, rows=3, most=3):
    rng = random.Random(seed)
    rounds = []
    for _ in range(count):
        lengths = [rng.randint(0, most) for _ in range(rng.randint(1, rows))]
        load = len(lengths), max(lengths), len(lengths) + sum(lengths)
        rounds.append((load, rng.gauss(0, 0.3)))
    return rounds


def learnt(rounds):
    costs = RoundCosts(PROFILE, {})
    for load, surprise in rounds:
        costs.learn(load, surprise, news=1e-3)
    return costs


@pytest.mark.parametrize("seed", range(5))
def test_costs_are_a_gaussian_process_over_all_rounds(seed):
    rounds = some_rounds(seed, 24)
    costs = learnt(rounds)
    assert len(costs.loads) < len(rounds)  # some came more than once
    for at in [(1, 0, 1), (3, 3, 12), (2, 1, 3), (64, 3, 70)]:
        mean, deviation = (x.item() for x in costs.posterior(np.array([at])))
        assert (mean, deviation) == pytest.approx(process(rounds, at))


@pytest.mark.parametrize("seed", range(12))
def test_choice_is_the_best_of_all_lengths(seed):
    """By the formula, written out: every choice of lengths, at the lower bound of its seconds."""
    rng = random.Random(seed)
    rounds = some_rounds(seed, 8)
    stands = [[rng.random() for _ in range(3)] for _ in range(3)]
    expected = [
        [1 + sum(math.prod(s[: i + 1]) for i in range(n)) for n in range(4)] for s in stands
    ]

    def seconds(levels, judged):
        mean, deviation = process(rounds, (3, levels, judged))
        return PROFILE[levels] * math.exp(mean - deviation)

    def rate(lengths):
        drafted, levels = sum(lengths), max(lengths)
        # of as many tokens, no round with fewer levels takes longer
        fewest = -(-drafted // 3)
        tokens = sum(e[n] for e, n in zip(expected, lengths, strict=True))
        return tokens / max(seconds(n, 3 + drafted) for n in range(fewest, levels + 1))

    best = max(map(rate, itertools.product(range(4), repeat=3)))
    chosen = best_lengths(np.array(expected), learnt(rounds))
    assert rate(chosen) == pytest.approx(best)


def test_by_the_profile_alone_rows_draft_as_goodput_does():
    rng = random.Random(0)
    for _ in range(10):
        seconds = [1 + 0.3 * n * rng.random() for n in range(7)]
        policies = [
            made(Experience(list(seconds)), news=0) for made in (FaserLength, GoodputLength)
        ]
        for policy in policies:
            policy.start(4)
        for _ in range(8):
            kept = [rng.randint(0, 3) for _ in range(4)]
            for policy in policies:
                told(policy, [3] * 4, kept)
        assert policies[0].budget() == policies[1].budget()


def served(policy, chances, seconds, rounds=150):
    """Let rows with such chances run under a clock; their lengths in the last rounds, the rate."""
    rng, lengths, tokens, clock = random.Random(1), [], 0, 0.0
    policy.start(len(chances))
    for step in range(rounds):
        budget = policy.budget()
        kept = [
            next((i for i in range(n) if rng.random() > chance), n)
            for n, chance in zip(budget, chances, strict=True)
        ]
        took = seconds(len(chances), max(budget), len(chances) + sum(budget))
        if step >= rounds // 2:
            lengths.append(budget)
            tokens, clock = tokens + sum(kept) + len(kept), clock + took
        told(policy, budget, kept, took)
    return np.mean(lengths, 0), tokens / clock


def test_lengths_follow_the_load():
    """Of a device whose tokens cost once it is full, more rows draft less, the unlucky ones first.

    The profile is of one row: it knows nothing of load."""

    def seconds(rows, levels, judged):
        return 1 + 0.05 * levels + 0.08 * max(0, judged - 8)

    def profile():
        return Experience([seconds(1, n, 1 + n) for n in range(7)])

    alone, _ = served(FaserLength(profile()), [0.9], seconds)
    chances = [0.95, 0.95, 0.95, 0.1, 0.1, 0.1]
    beside, rate = served(FaserLength(profile()), chances, seconds)
    assert alone[0] > 4
    assert beside[:3].mean() > beside[3:].mean() + 1
    assert beside.sum() < 0.7 * 6 * alone[0]
    alike, plainly = served(GoodputLength(profile()), chances, seconds)
    assert np.allclose(alike, alike[0])  # all rows draft as far
    assert rate > 1.1 * plainly


def test_where_the_longest_draft_is_waited_for_rows_draft_alike():
    def seconds(rows, levels, judged):
        return PROFILE[levels]

    lengths, _ = served(FaserLength(Experience(list(PROFILE))), [0.9, 0.9, 0.6], seconds)
    assert lengths.min() > 0.8 * lengths.max() > 0


def test_a_row_without_drafts_tries_again_ever_more_rarely():
    policy = FaserLength(Experience([1.0, 1.2, 1.4]), news=0)
    policy.start(2)
    drafted = []
    for _ in range(300):
        budget = policy.budget()
        drafted.append(budget[1])
        told(policy, budget, [budget[0], 0])
    assert budget[0] == 2  # its neighbour goes on
    policy.experience.seconds[:] = [1.0, 1.9, 2.8]  # drafts do not pay for the second row
    drafted.clear()
    for _ in range(300):
        budget = policy.budget()
        drafted.append(max(budget))
        told(policy, budget, [0, 0])
    tries = [n for n, x in enumerate(drafted) if x and n > drafted.index(0)]
    assert {drafted[n] for n in tries} == {1}
    assert 2 <= len(tries) < 2 * 300 // PATIENCE
    policy.seat(Context.empty(2, 1), [1])
    assert policy._waits[1] == (0, PATIENCE)
    told(policy, [0, 0], [0, 0], finished=[True, True])
    assert policy.budget() == [0, 0]


def test_old_loads_are_forgotten():
    costs = RoundCosts(PROFILE, {})
    for n in range(3 * _MOST):
        costs.learn((n + 2, 1, 2 * n + 4), 0.5, news=0.2)
        costs.learn((1, 1, 2), -0.5, news=0.2)
    assert len(costs.loads) == _MOST
    assert costs.loads[1, 1, 2] == (5, -0.5)
