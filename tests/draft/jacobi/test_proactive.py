"""A window with siblings: exact by enumeration, and what of the released code is not."""

from __future__ import annotations

import pytest
import torch
from toys import EXACT, Table, TableTarget, context_at, distance, whole_loop

from mmspec.draft.jacobi.proactive import ProactiveDrafter
from mmspec.engine.accept import in_turn
from mmspec.engine.accept.chain import pick
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.accept.tree import path_verdict
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Scores
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import advance


@pytest.mark.parametrize(
    ("widths", "vocab", "limit", "window"),
    [((2,), 2, 5, 2), ((2, 2), 2, 5, 3), ((3,), 3, 3, 2), ((2, 1), 3, 3, 2), ((2, 2), 3, 3, 2)],
    ids=str,
)
def test_joint_law_of_the_whole_loop(widths, vocab, limit, window):
    target = Table(vocab, 7)
    law = whole_loop(
        limit,
        TableTarget(target),
        lambda: ProactiveDrafter(vocab, widths=widths),
        rule=RecursiveRule(),
        length=ConstantLength(window),
    )
    assert distance(law, target.joint(limit)) < EXACT


def law_of(drafter):
    target = Table(3, 4)
    law = whole_loop(3, TableTarget(target), drafter, RecursiveRule())
    return distance(law, target.joint(3))


class FromTheResidual(ProactiveDrafter):
    """The released code: others are drawn from what the coupling leaves of the new law."""

    def redraw(self, context, laws, index, coins):
        self._rest = laws
        if index is not None and self._last is not None:
            q = pick(self._last.law.probs, index.clamp_max(self._last.nodes - 1))
            known = (index < self._last.lengths[:, None])[..., None]
            self._rest = torch.where(known, (laws - q).clamp_min(0), laws)
        return super().redraw(context, laws, index, coins)

    def left(self, laws, tokens):
        levels = torch.arange(laws.shape[1]).clamp_max(self._rest.shape[1] - 1)
        rest = super().left(self._rest[:, levels], tokens)
        return torch.where((rest > 0).any(-1, keepdim=True), rest, super().left(laws, tokens))


def longest(draft, table, ok):
    """The released code: of the paths whose every token stands, the one that goes furthest."""
    alive = (draft.ancestors() <= ok[:, None]).all(-1) & ok & draft.live()
    reach = torch.where(alive, draft.depths() + 1, 0)
    end = reach.argmax(1)
    length = reach.amax(1)
    way = torch.zeros(len(end), draft.levels, dtype=torch.long)
    for row, node in enumerate(end.tolist()):
        way[row] = node
        for level in range(int(length[row]) - 1, -1, -1):
            way[row, level] = node
            node = int(draft.parents[row, node])
    return way, length, torch.where(length > 0, end + 1, 0)


def test_hazard_others_drawn_from_the_residual():
    assert law_of(lambda: ProactiveDrafter(3, widths=(2, 2))) < EXACT
    assert law_of(lambda: FromTheResidual(3, widths=(2, 2))) > 1e-3


def test_hazard_the_longest_path(monkeypatch):
    monkeypatch.setattr(in_turn, "walk", longest)
    assert law_of(lambda: ProactiveDrafter(3, widths=(1, 1))) < EXACT  # there is but one
    assert law_of(lambda: ProactiveDrafter(3, widths=(2, 2))) > 1e-3


def drafted(budget, seeds=(3, 4), widths=(3, 2)):
    """A second draft of two rows, and what the first left behind."""
    drafter, rule = ProactiveDrafter(5, widths=widths), RecursiveRule()
    target, coins = TableTarget(Table(5, 2)), ProductionCoins(list(seeds))
    context = context_at((), len(seeds), 20)
    drafter.start(context)
    proposal, verification = coins.round(0)
    draft = drafter.propose(context, [6] * len(seeds), proposal)
    scores = target.score(context, draft)
    verdict = rule.verify(draft, scores, verification)
    advance(context, draft, scores, verdict)
    drafter.observe(context, draft, scores, verdict)
    return drafter.propose(context, budget, coins.round(1)[0])


def test_a_row_drafts_what_it_would_alone():
    """Whatever room its neighbours have."""
    for room in range(1, 7):
        both = drafted([room, 6])
        for row, seed, own in ((0, 3, room), (1, 4, 6)):
            alone = drafted([own], seeds=(seed,))
            count = int(both.lengths[row])
            assert count == int(alone.lengths[0])
            for name in ("tokens", "parents"):
                mine = getattr(both, name)[row, :count]
                assert torch.equal(mine, getattr(alone, name)[0, :count])
            assert torch.equal(both.law.probs[row, :count], alone.law.probs[0, :count])


def test_layout_by_hand():
    draft = drafted([4, 4])
    assert draft.parents[0].tolist() == [-1, -1, -1, 0, 0, 1, 1, 2, 2, 3, 9]
    assert draft.lengths.tolist() == [11, 11]
    assert (draft.levels, draft.most_children) == (4, 3)
    tokens = draft.tokens
    assert all(len(set(row)) == 3 for row in tokens[:, :3].tolist())
    for pair in (5, 7):  # candidates of a position are the same behind all of the one before
        assert torch.equal(tokens[:, pair : pair + 2], tokens[:, 3:5])
    assert drafted([1, 1]).lengths.tolist() == [3, 3]
    assert drafted([3, 0]).lengths.tolist() == [10, 0]
    assert drafted([2, 2], widths=(1, 1)).parents[0].tolist() == [-1, 0]


def test_laws_are_those_behind_the_path():
    """Not those behind the window's own tokens, where the path left them."""
    drafter = ProactiveDrafter(4, widths=(2, 2))
    context = context_at((), 1, 20)
    drafter.start(context)
    draft = drafter.propose(context, [4], ProductionCoins([1]).round(0)[0])
    assert draft.parents[0].tolist() == [-1, -1, 0, 0, 1, 1, 2, 6]
    laws = torch.rand(1, draft.nodes + 1, 4, generator=torch.Generator().manual_seed(0)).double()
    laws = laws / laws.sum(-1, keepdim=True)
    # the second child of the root stands, and none behind it
    path, token = torch.ones(1, 4, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    verdict = path_verdict(draft, path, torch.tensor([1]), token)
    drafter.observe(context, draft, Scores(laws), verdict)
    # behind the root, node 1, its eldest child 4, and then the window's own 6 and 7
    assert torch.equal(drafter._laws, laws[:, [0, 2, 5, 7, 8]])
