"""Drafts, scores and contexts by hand: what they say of their own shape."""

from __future__ import annotations

import pytest
import torch

from mmspec.engine.draft import Context, Draft, Scores
from mmspec.engine.laws import ContractError, Gaussian, OneHot, Rewards

#       0     1          row 1: a chain 0 → 1, and 2 → 3 beside it
#      2 3    4   of row 0
PARENTS = torch.tensor([[-1, -1, 0, 0, 1], [-1, 0, -1, 2, -1]])
TOKENS = torch.arange(10).view(2, 5)


def tree(**fields) -> Draft:
    return Draft(TOKENS, torch.tensor([5, 2]), OneHot(), PARENTS, **fields)


def chain() -> Draft:
    return Draft(TOKENS, torch.tensor([5, 2]), OneHot())


def test_depths_and_reach():
    assert tree().depths().tolist() == [[0, 0, 1, 1, 1], [0, 1, 0, 1, 0]]
    assert tree().reach().tolist() == [2, 2]
    assert chain().depths().tolist() == [[0, 1, 2, 3, 4]] * 2
    assert chain().reach().tolist() == [5, 2]
    none = Draft(TOKENS[:, :0], torch.tensor([0, 0]), OneHot(), PARENTS[:, :0])
    assert none.reach().tolist() == [0, 0]


def test_filling_reaches_nowhere():
    draft = Draft(TOKENS, torch.tensor([2, 3]), OneHot(), PARENTS)
    assert draft.reach().tolist() == [1, 2]
    assert draft.live().tolist() == [[True] * 2 + [False] * 3, [True] * 3 + [False] * 2]


def test_ancestors():
    expected = torch.eye(5).bool().repeat(2, 1, 1)
    for row, node, above in ((0, 2, 0), (0, 3, 0), (0, 4, 1), (1, 1, 0), (1, 3, 2)):
        expected[row, node, above] = True
    assert torch.equal(tree().ancestors(), expected)
    assert torch.equal(tree(bounds=(2, 2)).ancestors(), expected)
    assert chain().ancestors()[1].tolist() == [[m <= n for m in range(5)] for n in range(5)]


def test_bounds():
    assert (tree().levels, tree().most_children) == (5, 5)
    assert (tree(bounds=(2, 3)).levels, tree(bounds=(2, 3)).most_children) == (2, 3)
    assert (chain().levels, chain().most_children) == (5, 1)


def test_nodes_are_judged_by_the_law_behind_their_parents():
    probs = torch.rand(2, 6, 3)
    found = Scores(probs).at_nodes(tree())
    for row in range(2):
        for node, parent in enumerate(PARENTS[row].tolist()):
            assert torch.equal(found[row, node], probs[row, parent + 1])
    assert torch.equal(Scores(probs).at_nodes(chain()), probs[:, :5])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_laws_that_the_target_cannot_give(bad):
    mean, std = torch.zeros(3, 4, 2), torch.ones(3, 4, 2)
    mean[1, 3, 0], std[2, 0, 1] = bad, bad
    scores = Scores(Gaussian(mean, std))
    assert scores.undefined().tolist() == [False, True, True]
    every, some = torch.full((3,), 3), torch.tensor([3, 2, 0])  # what fell is not asked about
    assert scores.undefined_where_drawn(every).tolist() == [False, True, True]
    assert scores.undefined_where_drawn(some).tolist() == [False, False, True]
    probs = torch.rand(3, 4, 2)
    probs[1, 2] = float("nan")
    assert Scores(probs).undefined().tolist() == [False, True, False]
    assert Scores(probs).undefined_where_drawn(some).tolist() == [False, True, False]
    frames = torch.full((3, 1, 4), bad)
    assert not Scores(Rewards(frames)).undefined().any()


def test_scores_of_another_kind():
    laws, vectors = Scores(torch.rand(1, 2, 3)), Scores(Gaussian(torch.rand(1), torch.rand(1)))
    rewards, nobody = Scores(Rewards(torch.rand(1, 1, 4))), Scores(Rewards(torch.rand(1, 1, 0)))
    assert rewards.rewards.shape == (1, 1, 4)
    for scores, name in (
        (vectors, "probs"),
        (rewards, "probs"),
        (laws, "gaussian"),
        (rewards, "gaussian"),
        (laws, "rewards"),
        (nobody, "rewards"),
    ):
        with pytest.raises(ContractError, match="judges"):
            getattr(scores, name)


def test_noise_of_normal_laws():
    law = Gaussian(torch.zeros(5), torch.tensor([1.0, 0.0, -1.0, float("inf"), float("nan")]))
    assert law.noisy().tolist() == [True, False, False, False, False]


def test_an_empty_context():
    context = Context.empty(2, 5)
    assert (context.tokens.shape, context.last.shape) == ((2, 5), (2, 1))
    assert (context.base, context.room(), context.finished) == ([0, 0], [5, 5], [False, False])
    assert Context.empty(2, 0).finished == [True, True]
    vectors = Context.empty(2, 5, first=torch.ones(2, 1, 3), window=4)
    assert vectors.tokens.tolist() == torch.zeros(2, 4, 3).tolist()
    assert vectors.last.tolist() == torch.ones(2, 1, 3).tolist()


def test_room_and_place():
    context = Context.empty(3, 5)
    context.base, context.finished = [0, 3, 2], [False, False, True]
    assert context.room() == [5, 2, 0]
    context.reserve(2)
    assert context.tokens.shape == (3, 5)
    context.reserve(4)  # positions 3, 4, 5, 6 of row 1
    assert context.tokens.shape == (3, 7)
    held = Context.empty(3, 5, window=2)
    held.reserve(9)
    assert held.tokens.shape == (3, 2)


def test_which_tokens_were_drafted():
    context = Context.empty(2, 9)
    context.accepted, context.guessed, context.emitted = [2, 0], [0, 0], [3, 1]
    assert context.drafted() == [[True, True, False], [False]]
    context.keep = torch.tensor([[True, False, True], [False, True, True]])
    assert context.drafted() == [[True, False, True], [False]]
