"""Speculative Verdict with made-up experts: who is chosen, who is left out, what it costs."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from mmspec.errors import InputError
from mmspec.pipelines.verdict.verdict import (
    SpeculativeVerdict,
    VerdictError,
    consensus_scores,
    verdict_prompt,
)


class Fake:
    """Says what it is told to; `fails` names the methods that raise."""

    def __init__(self, name, answer, nll=None, fails=(), log=None):
        self.name, self.says, self.table, self.fails = name, answer, nll or {}, fails
        self.tokens, self.log = 0, [] if log is None else log

    def _called(self, what, tokens):
        self.tokens += tokens
        self.log.append((self.name, what))
        if what in self.fails:
            raise ZeroDivisionError(f"{what} of {self.name}")

    def answer(self, images, question):
        self._called("answer", 2)
        self.seen = (images, question)
        return self.says

    def nll(self, images, question, answers):
        self._called("nll", 3 * len(answers))
        self.judged = list(answers)
        return [self.table[text] for text in answers]

    def reason(self, images, question):
        self._called("reason", 10)
        return f"{self.name} thinks {self.says}"


def panel(matrix):
    """Experts 0, 1, …, each with an answer of its own; `matrix[a][b]`: answer a judged by b."""
    count = len(matrix)
    return [
        Fake(str(b), f"answer {b}", {f"answer {a}": matrix[a][b] for a in range(count)})
        for b in range(count)
    ]


def brute_force(matrix, keep):
    """The `keep` experts whose summed score is lowest, among all sets; the formula, written out."""
    count = len(matrix)
    scores = []
    for a in range(count):
        score = 0.0
        for b in range(count):
            if b != a:
                score += abs(matrix[a][b] - matrix[b][b])
        scores.append(score)
    best = min(itertools.combinations(range(count), keep), key=lambda s: sum(scores[i] for i in s))
    return scores, sorted(best, key=lambda i: scores[i])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [3, 4, 5, 7])
def test_selection_is_brute_force(count, seed):
    rng = random.Random(seed)
    matrix = [[rng.expovariate(1) for _ in range(count)] for _ in range(count)]
    for keep in (1, 2, 3):
        made = SpeculativeVerdict(panel(matrix), Fake("judge", "done"), keep)("image", "why?")
        scores, best = brute_force(matrix, keep)
        assert [opinion.score for opinion in made.opinions] == pytest.approx(scores, abs=1e-12)
        assert made.chosen == [str(i) for i in best]
        assert [opinion.name for opinion in made.opinions if opinion.path] == sorted(made.chosen)


def test_formula():
    """By hand: answer 0 costs expert 1 a nat more than its own, and expert 2 half a nat less."""
    matrix = [[1.0, 3.0, 0.5], [1.5, 2.0, 4.0], [1.0, 2.0, 1.0]]
    assert consensus_scores(matrix) == [1.0 + 0.5, 0.5 + 3.0, 0.0]
    assert consensus_scores([[5.0]]) == [0.0]


def test_equal_scores_keep_their_order():
    made = SpeculativeVerdict(panel([[1.0] * 5] * 5), Fake("judge", "done"), 3)("image", "why?")
    assert made.chosen == ["0", "1", "2"]


def test_the_same_answer_has_the_same_score():
    """Two of four say the same: their scores are equal to the last bit, so their order stands."""
    table = {"red": 0.1, "blue": 0.7, "green": 2.3}
    names = ["red", "blue", "red", "green"]
    experts = [
        Fake(str(i), text, {k: v * (1 + i / 3) for k, v in table.items()})
        for i, text in enumerate(names)
    ]
    made = SpeculativeVerdict(experts, Fake("judge", "red"), 3)("image", "which?")
    first, _, third, _ = made.opinions
    assert first.answer == third.answer == "red"
    assert experts[0].judged == ["red", "blue", "green"]  # each text once
    scores, _ = brute_force([[e.table[text] for e in experts] for text in names], 3)
    assert [o.score for o in made.opinions] == pytest.approx(scores)
    assert made.chosen.index("0") < made.chosen.index("2")


def test_one_expert():
    """Nobody to agree with: no likelihoods are asked for."""
    log = []
    expert, judge = Fake("one", "red", log=log), Fake("judge", "blue", log=log)
    made = SpeculativeVerdict([expert], judge)("image", "which?")
    assert made.text == "blue"
    assert made.chosen == ["one"]
    assert made.opinions[0].score is None
    assert log == [("one", "answer"), ("one", "reason"), ("judge", "answer")]
    assert made.contract == "lossy"


def test_two_experts_are_both_heard():
    experts = panel([[1.0, 5.0], [2.0, 1.0]])
    made = SpeculativeVerdict(experts, Fake("judge", "done"))("image", "why?")
    assert made.chosen == ["1", "0"]
    assert [opinion.score for opinion in made.opinions] == [4.0, 1.0]


def test_what_the_judge_reads():
    experts = panel([[1.0, 5.0], [2.0, 1.0]])
    judge = Fake("judge", "done")
    made = SpeculativeVerdict(experts, judge)("image", "which colour?")
    image, prompt = judge.seen
    assert image == "image"
    parts = ("Question: which colour?", "1 thinks answer 1", "0 thinks answer 0", "single word")
    assert [prompt.index(part) for part in parts] == sorted(prompt.index(part) for part in parts)
    assert prompt == verdict_prompt("which colour?", [made.opinions[1], made.opinions[0]])
    SpeculativeVerdict(experts, judge, prompt=lambda q, o: f"{q} {len(o)}")("image", "who?")
    assert judge.seen == ("image", "who? 2")


@pytest.mark.parametrize("stage", ["answer", "nll", "reason"])
def test_an_expert_that_raises_is_left_out(stage):
    """The others are as if it had never been there; where it only reasons badly, it had a score."""
    rng = random.Random(3)
    matrix = [[rng.random() for _ in range(5)] for _ in range(5)]
    matrix[2] = [matrix[b][b] for b in range(5)]  # all agree with it: it would be the first
    experts = panel(matrix)
    experts[2].fails = (stage,)
    made = SpeculativeVerdict(experts, Fake("judge", "done"), 4)("image", "why?")
    assert made.opinions[2].error == f"ZeroDivisionError: {stage} of 2"
    assert made.opinions[2].path is None
    assert "2" not in made.chosen
    assert len(made.chosen) == 4
    assert all(opinion.error is None for opinion in made.opinions if opinion.name != "2")
    if stage != "reason":
        left = [0, 1, 3, 4]
        scores, best = brute_force([[matrix[a][b] for b in left] for a in left], 4)
        assert made.opinions[2].score is None
        assert [made.opinions[i].score for i in left] == pytest.approx(scores, abs=1e-12)
        assert made.chosen == [str(left[i]) for i in best]


@pytest.mark.parametrize(
    ("break_it", "error"),
    [
        (lambda e: setattr(e, "says", "  "), "gave no answer"),
        (lambda e: setattr(e, "says", None), "gave no answer"),
        (lambda e: e.table.update({"answer 0": math.nan}), "likelihoods that are no numbers"),
        (lambda e: e.table.update({"answer 0": math.inf}), "likelihoods that are no numbers"),
    ],
)
def test_an_expert_without_an_answer_is_left_out(break_it, error):
    experts = panel([[1.0] * 3] * 3)
    break_it(experts[1])
    made = SpeculativeVerdict(experts, Fake("judge", "done"))("image", "why?")
    assert error in made.opinions[1].error
    assert made.chosen == ["0", "2"]


def test_nobody_left():
    experts = [Fake("a", "x", fails=("answer",)), Fake("b", "x", fails=("reason",))]
    with pytest.raises(VerdictError, match=r"a: ZeroDiv.* of a; b: ZeroDivisionError: reason of b"):
        SpeculativeVerdict(experts, Fake("judge", "done"))("image", "why?")


def test_the_judges_own_error_is_not_hidden():
    with pytest.raises(ZeroDivisionError, match="answer of judge"):
        SpeculativeVerdict([Fake("a", "x")], Fake("judge", "", fails=("answer",)))("image", "why?")


def test_cost():
    """Answers 2 tokens, likelihoods 3 a text, paths 10, as the fakes count."""
    experts = panel([[1.0] * 4] * 4)
    experts[1].fails = ("answer",)
    judge = Fake("judge", "done")
    judge.tokens = 7  # from before
    made = SpeculativeVerdict(experts, judge, 2)("image", "why?")
    assert [(o.cost.calls, o.cost.tokens) for o in made.opinions] == [
        (3, 2 + 9 + 10),
        (1, 2),
        (3, 2 + 9 + 10),
        (2, 2 + 9),
    ]
    assert (made.cost.calls, made.cost.tokens) == (1, 2)
    assert (made.total.calls, made.total.tokens) == (10, 57)
    assert made.total.seconds >= max(o.cost.seconds for o in made.opinions) > 0


def test_wrong_panels_are_refused():
    expert = Fake("a", "x")
    with pytest.raises(InputError, match="needs experts"):
        SpeculativeVerdict([], expert)
    with pytest.raises(InputError, match=r"share a name \(a, a\)"):
        SpeculativeVerdict([expert, expert], expert)
    with pytest.raises(InputError, match="can't hear 0 experts"):
        SpeculativeVerdict([expert], expert, keep=0)
