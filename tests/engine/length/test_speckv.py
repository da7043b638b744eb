"""Lengths by the laws of earlier drafts: what is learnt, what is chosen, and the law of it all."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from toys import EXACT, Table, TableModel, TableTarget, distance, drafters, whole_loop

from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.draft import Context, Draft
from mmspec.engine.laws import Categorical, OneHot
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.length.goodput import Experience
from mmspec.engine.length.signals import _DOUBT, _DRIFT, _PRIOR, Regression, signals_of
from mmspec.engine.length.speckv import SpecKvLength, _RowSignals
from mmspec.errors import InputError
from mmspec.methods import SpecConfig

SURE, UNSURE = [0.97, 0.01, 0.01, 0.01], [0.25] * 4


def drafted(laws: list[list[float]], nodes: int) -> Draft:
    """Rows whose nodes all have the row's law."""
    probs = torch.tensor(laws)[:, None].expand(-1, nodes, -1)
    tokens = torch.zeros(len(laws), nodes, dtype=torch.long)
    return Draft(tokens, torch.tensor([nodes] * len(laws)), Categorical(probs))


def told(policy, draft: Draft, accepted: list[int], seconds: float = 0.0) -> None:
    context = Context.empty(len(accepted), 1)
    context.reached, context.accepted = draft.lengths.tolist(), accepted
    context.emitted = [kept + 1 for kept in accepted]
    context.seconds = seconds
    policy.observe(context, draft, None)


# --- signals and regression -----------------------------------------------------------------------


def test_signals_are_means_over_real_nodes():
    laws = torch.tensor([[SURE, UNSURE, SURE], [UNSURE, SURE, SURE], [SURE, SURE, SURE]])
    draft = Draft(torch.zeros(3, 3).long(), torch.tensor([2, 1, 0]), Categorical(laws))
    first, second, none = signals_of(draft)
    entropy = -sum(p * math.log(p) for p in SURE)
    assert first == pytest.approx(((entropy + math.log(4)) / 2, (0.97 + 0.25) / 2))
    assert second == pytest.approx((math.log(4), 0.25))
    assert none is None
    draft.law = OneHot()
    assert signals_of(draft) == [(0.0, 1.0), (0.0, 1.0), None]


@pytest.mark.parametrize("seed", range(5))
def test_regression_takes_the_steps_of_its_formula(seed):
    """An independent twin with matrices: the inverse of the information, a step a token."""
    rng = random.Random(seed)
    regression, weights = Regression(), np.array([math.log(_PRIOR / (1 - _PRIOR)), 0, 0, 0])
    covariance = np.eye(4) * _DOUBT
    for _ in range(30):
        signals, position = (rng.random() * 3, rng.random()), rng.randrange(6)
        stood = rng.random() < 0.5
        x = np.array([1, signals[0], signals[1] - 0.5, math.log(1 + position)])
        p = 1 / (1 + np.exp(-weights @ x))
        assert regression.stands(signals, position) == pytest.approx(p)
        covariance = np.linalg.inv(np.linalg.inv(covariance) + p * (1 - p) * np.outer(x, x))
        weights = weights + (stood - p) * covariance @ x
        covariance += np.diag(np.minimum(_DRIFT, _DOUBT - np.diag(covariance)))
        regression.learn(signals, position, stood)
        assert regression.weights == pytest.approx(weights)


def test_regression_finds_what_signals_tell():
    """Of tokens drawn from a logistic law, chances come out within 0.1."""
    rng, regression = random.Random(0), Regression()

    def truth(entropy: float, position: int) -> float:
        return 1 / (1 + math.exp(-(2.5 - 1.5 * entropy - 0.5 * math.log1p(position))))

    for _ in range(3000):
        entropy, position = 3 * rng.random(), rng.randrange(8)
        signals = entropy, 1 - entropy / 4
        regression.learn(signals, position, rng.random() < truth(entropy, position))
    for entropy in (0.2, 1.0, 2.5):
        for position in (0, 3, 7):
            found = regression.stands((entropy, 1 - entropy / 4), position)
            assert abs(found - truth(entropy, position)) < 0.1


def test_extreme_signals_are_numbers():
    regression = Regression()
    for n in range(2000):
        regression.learn((12.0, 1e-6), 63, n % 2 == 0)
        regression.learn((0.0, 1.0), 0, True)
    assert 0 <= regression.stands((1e6, 0.0), 63) <= 1
    assert all(map(math.isfinite, regression.weights))


# --- the choice -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_choice_has_the_best_rate(seed):
    """And without a cost, as published, the longest is taken whatever is thought of it."""
    rng = random.Random(seed)
    row = _RowSignals(Regression(), 8)
    row.signals = rng.random() * 3, rng.random()
    row.regression.weights = [rng.gauss(0, 0.5) for _ in range(4)]
    chances = [row.regression.stands(row.signals, i) for i in range(8)]
    tokens = [1 + sum(math.prod(chances[: i + 1]) for i in range(n)) for n in range(9)]
    assert row.expected() == pytest.approx(tokens)
    seconds = [1 + 0.4 * n * rng.random() for n in range(9)]
    for costs in (seconds, [1.0] * 9):
        policy = SpecKvLength(Experience(list(costs)), news=0)
        policy.start(1)
        policy._rows = [row]
        best = max(range(9), key=lambda n: tokens[n] / costs[n])
        assert policy.budget() == [best]
    # the published objective is 1 + γ times the share that stands: the tokens of a round
    published = [1 + n * ((tokens[n] - 1) / n) if n else 1.0 for n in range(9)]
    assert published == pytest.approx(tokens)
    assert best == published.index(max(published)) == 8


def test_a_row_that_was_sure_drafts_further():
    """Two kinds of drafts take turns, and each is followed by one of the other kind's luck."""
    experience = Experience([1 + 0.25 * n for n in range(9)])
    rng, lengths = random.Random(1), {True: [], False: []}
    policy = SpecKvLength(experience, news=0)
    policy.start(1)
    sure = True
    for step in range(400):
        (n,) = policy.budget()
        chance = 0.95 if sure else 0.2  # of what the draft before was
        kept = next((i for i in range(n) if rng.random() > chance), n)
        if step > 100 and n:
            lengths[sure].append(n)
        sure = rng.random() < 0.5 if n else sure
        told(policy, drafted([SURE if sure else UNSURE], n) if n else drafted([SURE], 0), [kept])
    assert min(lengths[True]) >= 3
    assert max(lengths[False], default=0) <= 2


def test_a_row_learns_from_its_own_drafts():
    def expected(rows: int) -> list[float]:
        policy = SpecKvLength(Experience([1 + 0.3 * n for n in range(5)]), news=0)
        policy.start(rows)
        for step in range(30):
            draft = drafted([[SURE, UNSURE][(step + row) % 2] for row in range(rows)], 3)
            told(policy, draft, [3 if (step + row) % 3 else 0 for row in range(rows)])
        return policy._rows[0].expected()

    assert expected(1) == expected(4)


def test_the_next_generation_knows():
    experience = Experience([1 + 0.2 * n for n in range(9)])
    policy = SpecKvLength(experience, news=0)
    policy.start(1)
    for _ in range(60):
        told(policy, drafted([UNSURE], 4), [0])
    later = SpecKvLength(experience, news=0)
    later.start(2)
    assert later._rows[0].expected()[-1] < 1.5
    assert later._rows[0].regression is not later._rows[1].regression
    later.seat(Context.empty(2, 1), [1])
    assert later._rows[1].signals is None


# --- the law --------------------------------------------------------------------------------------


class Newborn(SpecKvLength):
    """Every enumerated run is the first one: no earlier one, and no clock."""

    def __init__(self, costs=(1, 1.3, 1.6, 1.9)) -> None:
        self.costs = costs
        self.seen = set()
        super().__init__(Experience(list(costs)), news=0)

    def start(self, rows: int) -> None:
        self.experience = Experience(list(self.costs))
        super().start(rows)

    def budget(self):
        chosen = super().budget()
        self.seen.add(chosen[0])
        return chosen


@pytest.mark.parametrize("name", ["model", "jacobi-previous", "jacobi-uniform", "lookup"])
@pytest.mark.parametrize("seed", [8, 11])
def test_joint_law(name, seed):
    target, length = Table(2, 7), Newborn((1, 1.35, 1.75, 2.1))
    law = whole_loop(4, TableTarget(target), drafters(2, Table(2, seed))[name], length=length)
    assert distance(law, target.joint(4)) < EXACT


def test_joint_law_of_a_tree_under_lengths_that_differ():
    target, model = Table(3, 5), TableModel(Table(3, 6))
    length = Newborn((1, 1.4, 1.9))
    law = whole_loop(
        3, TableTarget(target), lambda: TreeDrafter(model, (2, 1)), RecursiveRule(), length
    )
    assert distance(law, target.joint(3)) < EXACT


def test_lengths_follow_what_was_drawn_and_the_law_stays():
    """Among the branches of one enumeration rows draft differently far."""
    target, model, length = Table(2, 3), Table(2, 53), Newborn((1, 1.62, 2.3))
    law = whole_loop(5, TableTarget(target), lambda: ModelDrafter(TableModel(model)), length=length)
    assert distance(law, target.joint(5)) < EXACT
    assert len(length.seen) > 1


class Peeking(ModelDrafter):
    """The published way: entropy and confidence of a draft choose that very draft's length."""

    most = 0.3  # nats

    def propose(self, context, budget, coins):
        draft = super().propose(context, budget, coins)
        if draft.nodes > 1:
            entropy = torch.special.entr(draft.law.probs).sum(-1)
            # the second law depends on the first token, which is cut with it
            draft.lengths = torch.where(entropy[:, 1] > self.most, 0, draft.lengths)
        return draft


def test_hazard_is_seen():
    worst = 0.0
    for seed in range(4):
        target, model = Table(2, seed), Table(2, seed + 50)
        law = whole_loop(
            4,
            TableTarget(target),
            lambda model=model: Peeking(TableModel(model)),
            length=ConstantLength(2),
        )
        worst = max(worst, distance(law, target.joint(4)))
    assert worst > 1e-2


@pytest.mark.parametrize("method", ["scd", "gsd", "sjd-pac", "merged"])
def test_tokens_that_live_on_are_refused(method):
    with pytest.raises(InputError, match="drafts the same tokens again"):
        SpecConfig(method, length="speckv")


def test_heads_of_pictures_keep_their_tokens_as_well():
    with pytest.raises(InputError, match="drafts the same tokens again"):
        SpecConfig("spatial-sd", rule="token", length="speckv").resolve("image")
