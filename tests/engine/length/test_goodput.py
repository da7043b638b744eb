"""The goodput policy: its choice against brute force, its retreat, the law it must not touch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch

from mmspec.engine.draft import Context, Draft
from mmspec.engine.laws import OneHot
from mmspec.engine.length.goodput import (
    _FADE,
    _PRIOR,
    _WEIGHT,
    PATIENCE,
    Experience,
    GoodputLength,
    _RowGoodput,
)


def told(
    policy: GoodputLength,
    drafted: list[int],
    accepted: list[int],
    seconds: float = 0.0,
    finished: Sequence[bool] = (),
    emitted: Sequence[int] = (),
) -> None:
    context = Context.empty(len(drafted), 1)
    context.emitted = list(emitted) or [kept + 1 for kept in accepted]
    context.finished = list(finished) or context.finished
    context.reached, context.accepted, context.seconds = drafted, accepted, seconds
    tokens = torch.zeros(len(drafted), max(drafted)).long()
    policy.observe(context, Draft(tokens, torch.tensor(drafted), OneHot()), None)


@pytest.mark.parametrize("seed", range(20))
def test_choice_has_the_best_rate(seed):
    rng = random.Random(seed)
    row, seconds = _RowGoodput([_PRIOR] * 6), [1 + 0.4 * n * rng.random() for n in range(7)]
    row.judged = [rng.uniform(1, 9) for _ in range(6)]
    row.stood = [j * rng.random() for j in row.judged]

    def rate(n: int) -> float:
        tokens = reach = 1.0
        stands = _PRIOR  # with one prior for all positions: each is like the one before it
        for i in range(n):
            stands = (row.stood[i] + _WEIGHT * min(1.0, stands)) / (row.judged[i] + _WEIGHT)
            reach *= stands
            tokens += reach
        return tokens / seconds[n]

    assert row.expected() == pytest.approx([rate(n) * s for n, s in enumerate(seconds)])
    policy = GoodputLength(Experience(seconds), news=0)
    policy.start(1)
    policy._rows[0] = row
    assert policy.budget() == [max(range(7), key=rate)]


@pytest.mark.parametrize("seed", range(20))
def test_rows_draft_alike_for_the_longest_draft_is_what_a_round_costs(seed):
    """No other choice of lengths, row by row, gives a batch more tokens a second."""
    rng = random.Random(seed)
    seconds = [1 + 0.4 * n * rng.random() for n in range(4)]
    policy = GoodputLength(Experience(seconds), news=0)
    policy.start(3)
    for row in policy._rows:
        row.judged = [rng.uniform(1, 9) for _ in range(3)]
        row.stood = [j * rng.random() for j in row.judged]

    def rate(lengths: tuple[int, ...]) -> float:
        tokens = sum(row.expected()[n] for row, n in zip(policy._rows, lengths, strict=True))
        return tokens / seconds[max(lengths)]

    best = max(map(rate, itertools.product(range(4), repeat=3)))
    assert rate(tuple(policy.budget())) == pytest.approx(best)


def test_free_drafts_that_stand_are_as_long_as_they_may_be():
    policy = GoodputLength(Experience([1 + 0.01 * n for n in range(9)]), news=0)
    policy.start(1)
    for _ in range(20):
        told(policy, policy.budget(), policy.budget())
    assert policy.budget() == [8]


def test_useless_drafts_are_given_up_and_tried_again_ever_more_rarely():
    policy = GoodputLength(Experience([1 + 0.2 * n for n in range(9)]), news=0)
    policy.start(1)
    drafted = []
    for _ in range(400):
        (n,) = policy.budget()
        drafted.append(n)
        told(policy, [n], [0])
    tries = [i for i, n in enumerate(drafted) if n]
    retreat = drafted.index(0)
    assert retreat < 12
    later = [i for i in tries if i > retreat]
    gaps = [b - a for a, b in pairwise(later)]
    assert all(drafted[i] == 1 for i in later)
    assert len(gaps) >= 3
    assert gaps == [PATIENCE * 2**k + 1 for k in range(1, len(gaps) + 1)]
    extra = sum(0.2 * n for n in drafted)
    assert extra < 0.03 * len(drafted)  # what finding out has cost


def test_useful_drafts_are_found_again():
    policy = GoodputLength(Experience([1 + 0.1 * n for n in range(5)]), news=0)
    policy.start(1)
    for stands in [False] * 60 + [True] * 200:
        (n,) = policy.budget()
        told(policy, [n], [n if stands else 0])
    assert policy.budget() == [4]


def test_tokens_behind_the_end_of_a_text_were_not_judged():
    policy = GoodputLength(Experience([1.0] * 5), news=0)
    policy.start(2)
    told(policy, [4, 4], [2, 2], emitted=[2, 3], finished=[True, False])
    assert policy.experience.judged == pytest.approx([_FADE + 1, _FADE + 1, 1, 0])
    assert policy.experience.stood == pytest.approx([_FADE + 1, _FADE + 1, 0, 0])


@pytest.mark.parametrize(("emitted", "patience"), [([2, 2], PATIENCE), ([1, 2], 2 * PATIENCE)])
def test_a_try_is_judged_by_the_tokens_that_it_brought(emitted, patience):
    """A draft that stands and ends its text brings no token of the target's own behind it."""
    policy = GoodputLength(Experience([1.0, 1.8, 9.0]), news=0)
    policy.start(2)
    while policy.budget() == [0, 0]:
        told(policy, [0, 0], [0, 0])
    told(policy, [1, 1], [1, 1], emitted=emitted, finished=[emitted[0] == 1, False])
    assert policy._patience == patience


def test_rows_that_are_over_have_no_say():
    policy = GoodputLength(Experience([1 + 0.3 * n for n in range(7)]), news=0)
    policy.start(2)
    for _ in range(30):
        budget = policy.budget()
        told(policy, budget, [budget[0], 0])
    assert policy.budget() == [6, 6]  # of (7 + 1) / 2.8 tokens a second
    told(policy, [6, 6], [6, 0], finished=[True, False])
    assert policy.budget()[0] == 0
    assert policy.budget()[1] <= 1
    policy.seat(Context.empty(2, 1), [0])
    assert policy.budget() == [1, 1]  # of (1.7 + 1) / 1.3


def test_the_clock_corrects_the_table():
    """Drafts take as long as they take; most of a surprise is put down to the machine."""
    policy = GoodputLength(Experience([1.0, 1.2, 1.4]))
    policy.start(1)
    for _ in range(60):
        (n,) = policy.budget()
        assert n == 2  # a slower machine does not end drafting
        told(policy, [n], [n], seconds=1.5 * 1.4)
    assert policy.experience.seconds[2] == pytest.approx(1.5 * 1.4, rel=0.01)
    assert policy.experience.seconds[0] == pytest.approx(1.5**0.75, rel=0.01)


def test_slow_drafts_are_given_up():
    """Each costs more than the token that it brings. The last token of a generation is often a
    plain round, so after some generations that is found out, however wrong the table was."""
    experience, drafted = Experience([1.0, 1.1]), []
    for _ in range(40):
        policy = GoodputLength(experience)
        policy.start(1)
        drafted.append(0)
        for _ in range(64):
            (n,) = policy.budget()
            drafted[-1] += n
            told(policy, [n], [n], seconds=2.2 if n else 1.0)
        told(policy, [0], [0], seconds=1.0)
    assert drafted[0] == 64
    assert drafted[-1] <= 64 // 9  # one try after eight plain rounds
    assert experience.seconds[0] == pytest.approx(1.0, rel=0.1)


def test_the_next_generation_knows():
    """Drafts that never stood are not begun with again; the seconds are kept as well."""
    experience = Experience([1 + 0.2 * n for n in range(9)])
    spent = []
    for _ in range(2):
        policy, wasted = GoodputLength(experience, news=0), 0
        policy.start(1)
        for _ in range(256):
            (n,) = policy.budget()
            told(policy, [n], [0])
            wasted += n
        spent.append(wasted)
    assert spent[1] < spent[0]
    assert spent[1] <= 6  # single tokens, ever more rarely
    assert experience.stands()[0] < 0.1


def test_a_row_is_judged_by_its_own_drafts():
    def expected(rows: int) -> list[float]:
        policy = GoodputLength(Experience([1 + 0.3 * n for n in range(7)]), news=0)
        policy.start(rows)
        for step in range(40):
            told(policy, [3] * rows, [3 if (step + row) % 3 else 0 for row in range(rows)])
        return policy._rows[0].expected()

    assert expected(1) == expected(4)


def test_one_slow_round_is_not_believed():
    policy = GoodputLength(Experience([1.0, 1.1, 1.2]))
    policy.start(1)
    told(policy, [2], [2], seconds=1e6)
    assert policy.experience.seconds[2] == pytest.approx(1.2 * 3**0.2)
    assert policy.budget() == [2]
