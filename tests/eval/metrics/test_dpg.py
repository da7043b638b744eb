"""DPG-Bench's dependencies against chains of parents, all answers of all small graphs."""

from __future__ import annotations

import itertools
import random

import pytest

from mmspec.eval.metrics.dpg import DpgPrompt, DpgQuestion, dpg_scores, holding, picture_score


def graph(parents: dict[int, tuple[int, ...]], category="entity - whole"):
    return tuple(DpgQuestion(i, f"q{i}?", above, category) for i, above in parents.items())


def graphs(size: int):
    """Every way in which each question depends on some of the earlier ones."""
    options = [
        [c for n in range(i) for c in itertools.combinations(range(1, i), n)]
        for i in range(1, size + 1)
    ]
    for chosen in itertools.product(*options):
        yield dict(enumerate(chosen, 1))


def chains(parents, start):
    """Every path from a question up to a root."""
    if not parents[start]:
        return [[start]]
    return [[start, *rest] for parent in parents[start] for rest in chains(parents, parent)]


def in_order(parents, answers):
    """The official script's loop: parents first, answers overwritten on the way."""
    scores = {i: float(answers[i]) for i in parents}
    for i, above in parents.items():
        if any(scores[parent] == 0 for parent in above):
            scores[i] = 0
    return scores


def test_a_question_holds_if_every_chain_above_it_is_yes():
    count = 0
    for parents in graphs(4):
        questions = graph(parents)
        for said in itertools.product([False, True], repeat=4):
            answers = dict(enumerate(said, 1))
            expected = {
                i: all(answers[j] for chain in chains(parents, i) for j in chain) for i in parents
            }
            assert holding(questions, answers) == expected
            assert in_order(parents, answers) == expected
            assert picture_score(questions, answers) == pytest.approx(sum(expected.values()) / 4)
            count += 1
    assert count == 2 ** (0 + 1 + 2 + 3) * 2**4


def test_the_order_of_the_questions_does_not_matter():
    rng = random.Random(0)
    for _ in range(100):
        parents = {i: tuple(j for j in range(1, i) if rng.random() < 0.4) for i in range(1, 8)}
        answers = {i: rng.random() < 0.7 for i in parents}
        questions = list(graph(parents))
        expected = holding(questions, answers)
        rng.shuffle(questions)
        assert holding(questions, answers) == expected


def test_scores_by_hand():
    first = DpgPrompt(
        "a",
        "",
        (
            DpgQuestion(1, "", (), "entity - whole"),
            DpgQuestion(2, "", (1,), "attribute - color"),
            DpgQuestion(3, "", (2,), "relation - spatial"),
            DpgQuestion(4, "", (), "global"),
        ),
    )
    second = DpgPrompt("b", "", (DpgQuestion(1, "", (), "entity - part"),))
    no_parent = {1: False, 2: True, 3: True, 4: True}  # holds: 4 alone
    all_yes = dict.fromkeys(range(1, 5), True)
    scores = dpg_scores([(first, [no_parent, all_yes]), (second, [{1: False}, {1: False}])])
    assert scores["overall"] == pytest.approx(100 * ((1 / 4 + 1) / 2 + 0) / 2)
    assert scores["l1"] == {"attribute": 100, "entity": 25, "global": 100, "relation": 100}
    assert scores["l2"] == {
        "attribute - color": 100,
        "entity - part": 0,
        "entity - whole": 50,
        "global": 100,
        "relation - spatial": 100,
    }


def test_no_results_have_no_mean():
    with pytest.raises(ValueError, match="no results"):
        dpg_scores([])
