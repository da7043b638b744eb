"""A window with siblings: exact by enumeration, and what of the released code is not."""

from __future__ import annotations

import pytest
import torch
from toys import EXACT, Table, TableTarget, distance, whole_loop

from mmspec.draft.jacobi.proactive import ProactiveDrafter
from mmspec.engine.accept import in_turn
from mmspec.engine.accept.chain import pick
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.length.constant import ConstantLength


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
        rest = super().left(self._rest[:, : laws.shape[1]], tokens)
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
