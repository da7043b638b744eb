"""Windows that are chosen by what they have brought: the best is found, kept, and found again."""

from __future__ import annotations

from statistics import mode

import pytest
import torch
from toys import EXACT, Table, TableTarget, distance, drafters, whole_loop

from mmspec.engine.draft import Context, Draft
from mmspec.engine.laws import OneHot
from mmspec.engine.length.goodput import Experience
from mmspec.engine.length.settled import _AGAIN, SettledLength

ROWS = 2


def chosen(experience: Experience, tokens: dict[int, float], generations: int) -> list[int]:
    """Windows of generations of 10 rounds, each of a second and a tenth of one a token."""
    taken = []
    for _ in range(generations):
        policy = SettledLength(experience)
        policy.start(ROWS)
        for _ in range(10):
            budget = policy.budget()
            assert budget == [budget[0]] * ROWS
            context = Context.empty(ROWS, 99)
            context.emitted, context.seconds = [tokens[budget[0]]] * ROWS, 1 + budget[0] / 10
            nodes = torch.zeros(ROWS, budget[0]).long()
            policy.observe(context, Draft(nodes, torch.tensor(budget), OneHot()), None)
        taken.append(budget[0])
    return taken


def known(most: int) -> Experience:
    return Experience([1 + n / 10 for n in range(most + 1)])


def test_the_longest_comes_first_and_shorter_ones_while_they_bring_more():
    # tokens a second: 4 / 4.2, 3.5 / 2.6, 2.7 / 1.8, 1.6 / 1.4, …
    tokens = {32: 4.0, 16: 3.5, 8: 2.7, 4: 1.6, 2: 1.2, 1: 1.1, 0: 1.0}
    taken = chosen(known(32), tokens, 12)
    assert taken == [32, 16, 8, 4, *[8] * 8]


def test_where_nothing_pays_nothing_is_drafted():
    taken = chosen(known(12), dict.fromkeys((12, 6, 3, 1, 0), 1.0), 200)
    assert taken[:6] == [12, 6, 3, 1, 0, 0]
    extra = sum(window / 10 for window in taken[6:]) / len(taken[6:])
    assert extra < 0.01  # what trying again costs


@pytest.mark.parametrize("best", [32, 2])
def test_another_world_is_found_out(best):
    experience = known(32)
    first = {32: 4.0, 16: 3.5, 8: 2.7, 4: 1.6, 2: 1.2, 1: 1.1, 0: 1.0}
    assert mode(chosen(experience, first, 20)[-8:]) == 8
    later = {w: (1 + w / 10) / (1 + abs(w.bit_length() - best.bit_length())) for w in first}
    assert mode(chosen(experience, later, 8 * _AGAIN)[-8:]) == best


class Newborn(SettledLength):
    """Every enumerated run is the first one."""

    def __init__(self) -> None:
        super().__init__(Experience([1.0] * 4))

    def start(self, rows: int) -> None:
        self.experience = Experience([1.0] * 4)
        super().start(rows)


def test_joint_law():
    target = Table(2, 7)
    law = whole_loop(4, TableTarget(target), drafters(2, Table(2, 8))["coupled"], length=Newborn())
    assert distance(law, target.joint(4)) < EXACT
