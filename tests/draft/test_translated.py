"""A draft model of other words: exact, and it reads what the target said."""

from __future__ import annotations

import pytest
import torch
from toys import EXACT, Table, TableModel, TableTarget, distance, whole_loop

from mmspec.draft.ahead import AheadDrafter
from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.translated import TranslatedModel
from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Context, Draft
from mmspec.engine.laws import OneHot

# the target says "a", "b" and "ab", the draft model knows the letters alone
SPELLED = {0: (0,), 1: (1,), 2: (0, 1)}


class Letters(TableModel):
    """A table over the letters, whose laws are over the target's three tokens."""

    def extend(self, tokens, start, draft=None):
        laws = super().extend(tokens, start, draft)
        return torch.cat([laws, torch.zeros_like(laws[..., :1])], -1)


def translated(room=64):
    return TranslatedModel(Letters(Table(2, 344)), SPELLED.__getitem__, room)


DRAFTERS = {
    "chain": lambda: ModelDrafter(translated()),
    "ahead": lambda: AheadDrafter(translated()),
    "tree": lambda: TreeDrafter(translated(), (2, 1)),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow if k == "tree" else ()) for k in DRAFTERS]
)
def test_joint_law_of_the_whole_loop(kind):
    target = Table(3, 40)
    rule = RecursiveRule() if kind == "tree" else None
    law = whole_loop(
        3 if kind == "ahead" else 4, TableTarget(target), DRAFTERS[kind], rule, at_once=1
    )
    assert distance(law, target.joint(3 if kind == "ahead" else 4)) < EXACT


def test_it_reads_what_was_said_in_its_own_tokens():
    """Rows of other lengths in its words, and what a row said before is forgotten."""
    model = translated()
    model.start(2)
    model.extend(torch.tensor([[0, 2, 1], [0, 0, 0]]), [-1, -1])
    assert model.model.seen[0][1:] == [0, 1, 1]  # "ab", "b"
    assert model.model.seen[1][1:] == [0, 0, 0]  # "a", "a", and filling
    laws = model.extend(torch.tensor([[2, 2], [1, 0]]), [1, 2])  # behind "ab", and behind "aa"
    assert model.model.seen[0][1:] == [0, 1, 0, 1, 0, 1]
    assert model.model.seen[1][1:5] == [0, 0, 1, 0]
    table = model.model.table
    for row, said in enumerate([[(0, 1, 0, 1), (0, 1, 0, 1, 0, 1)], [(0, 0, 1), (0, 0, 1, 0)]]):
        assert [law[:2] for law in laws[row].tolist()] == [table(text) for text in said]


def test_a_tree_behind_a_token_of_several():
    """What stands before the root's last token is read first."""
    model = translated()
    model.start(1)
    model.extend(torch.tensor([[0, 1]]), [-1])
    draft = Draft(
        torch.tensor([[0, 1]]), torch.tensor([2]), OneHot(), parents=torch.tensor([[-1, -1]])
    )
    laws = model.extend(torch.tensor([[2, 0, 1]]), [1], draft)
    table, said = model.model.table, (1, 0, 1)
    texts = [said, (*said, 0), (*said, 1)]
    assert [law[:2] for law in laws[0].tolist()] == [table(text) for text in texts]


def test_a_row_without_room_drafts_nothing_and_others_go_on():
    """As long as another sample does not take its row."""
    model = translated(room=3)
    drafter = ModelDrafter(model)
    context = Context.empty(2, 8)
    drafter.start(context)
    coins = ProductionCoins([0, 1]).round(0)[0]
    assert drafter.propose(context, [1, 1], coins).lengths.tolist() == [1, 1]
    context.tokens[:, :2] = torch.tensor([[2, 2], [0, 1]])
    context.base, context.lengths = [2, 2], torch.tensor([2, 2])
    drafter.observe(context, None, None, None)
    draft = drafter.propose(context, [1, 1], coins)
    assert draft.lengths.tolist() == [0, 1]
    assert model.full == [True, False]
    assert draft.law.probs[1, 0, :2].tolist() == pytest.approx(model.model.table((0, 1)))
    model.model.seat = lambda context, rows: None
    drafter.seat(context, [0])
    assert model.full == [False, False]


def test_a_tree_that_room_is_too_small_for():
    model = translated(room=3)
    model.start(1)
    model.extend(torch.tensor([[0, 2]]), [-1])
    draft = Draft(
        torch.tensor([[0, 1]]), torch.tensor([2]), OneHot(), parents=torch.tensor([[-1, -1]])
    )
    laws = model.extend(torch.tensor([[2, 0, 1]]), [0], draft)
    assert laws.shape == (1, 3, 3)
    assert model.full == [True]
