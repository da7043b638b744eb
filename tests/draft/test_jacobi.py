"""The Jacobi window: which law each position carries. Exactness is tested with the token rule."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from toys import context_at

from mmspec.draft.jacobi import JacobiDrafter
from mmspec.engine.accept.chain import prefix_verdict
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.stats import SpecStats
from mmspec.engine.types import Draft, Engine, OneHot, Scores

VOCAB = 5


def after_a_round(init: str, lengths: list[int], kept: list[int], budget: list[int]):
    """A drafter that has seen one round of `lengths` nodes; the laws it saw, and its next draft."""
    rows, width = len(lengths), max(lengths)
    drafter, coins = JacobiDrafter(VOCAB, init), ProductionCoins(list(range(rows)))
    drafter.start(context_at((), rows, 20))
    laws = torch.rand(rows, width + 1, VOCAB, generator=torch.Generator().manual_seed(0)).double()
    laws = laws / laws.sum(-1, keepdim=True)
    nodes = torch.zeros(rows, width).long()
    draft, accepted = Draft(nodes, torch.tensor(lengths), OneHot()), torch.tensor(kept)
    context = context_at((0,), rows, 20)
    context.base = [k + 1 for k in kept]
    drafter.observe(
        context, draft, Scores(laws), prefix_verdict(draft, accepted, torch.zeros(rows).long())
    )
    return laws, drafter.propose(context, budget, coins.round(1)[0])


@pytest.mark.parametrize("init", ["uniform", "previous"])
def test_positions_keep_the_law_that_the_target_gave_them(init):
    """Position base + j was scored at index accepted + 1 + j of the round before."""
    laws, draft = after_a_round(init, lengths=[4, 4, 4], kept=[0, 2, 4], budget=[4, 4, 4])
    for row, kept in enumerate([0, 2, 4]):
        for j in range(4):
            index = kept + 1 + j
            if index <= 4:
                assert torch.equal(draft.law.probs[row, j], laws[row, index])
            elif init == "previous":
                assert torch.equal(draft.law.probs[row, j], laws[row, 4])
            else:
                assert torch.equal(
                    draft.law.probs[row, j], torch.full_like(laws[row, 0], 1 / VOCAB)
                )


def test_new_positions_take_the_law_above():
    """ByPosition's laws are known, so the law a row earlier is too."""
    row, seen = 6, []
    drafter = JacobiDrafter(VOCAB, "above", row)

    class Watched(TokenRule):
        def verify(self, draft, scores, coins):
            seen.append(draft.law.probs)
            return super().verify(draft, scores, coins)

    engine = Engine(
        ByPosition(), drafter, Watched(), ConstantLength(4), ProductionCoins(list(range(9)))
    )
    bases = [[0] * 9]
    run(engine, 9, 30, SpecStats(), lambda context: bases.append(list(context.base)))
    laws = ByPosition.laws / ByPosition.laws.sum(-1, keepdim=True)
    checked = 0
    for before, base, probs in zip(bases, bases[1:], seen[1:], strict=False):
        for b in range(9):
            first = min(before[b] + 5, 30)  # positions from here on had not been scored
            for j in range(min(4, 29 - base[b])):
                if first <= base[b] + j and base[b] + j >= row:
                    assert torch.equal(probs[b, j], laws[base[b] + j - row])
                    checked += 1
    assert checked > 40


def test_new_positions_are_spread_evenly():
    tokens = [after_a_round("uniform", [1] * 400, [1] * 400, [3] * 400)[1].tokens.flatten()]
    counts = torch.cat(tokens).bincount(minlength=VOCAB)
    assert (counts - 240).abs().max() < 5 * (1200 * 0.2 * 0.8) ** 0.5


def test_laws_behind_filling_are_not_used():
    """A row that drafted less than its neighbours knows less, as it would alone."""
    laws, draft = after_a_round("previous", lengths=[1, 4], kept=[0, 0], budget=[3, 3])
    for j in range(3):
        assert torch.equal(draft.law.probs[0, j], laws[0, 1])
        assert torch.equal(draft.law.probs[1, j], laws[1, 1 + j])


class ByPosition:
    """A target whose laws depend on the position alone."""

    laws = torch.rand(60, VOCAB, generator=torch.Generator().manual_seed(1)).double()

    def start(self, rows):
        pass

    def score(self, context, draft):
        index = torch.tensor(context.base)[:, None] + torch.arange(draft.nodes + 1)
        laws = self.laws[index]
        return Scores(laws / laws.sum(-1, keepdim=True))

    def commit(self, context, draft, verdict):
        pass


def test_a_settled_window_is_accepted_whole():
    """If laws ignore the prefix, the first guess of a position is its last law: q = p."""
    engine = Engine(
        ByPosition(),
        JacobiDrafter(VOCAB),
        TokenRule(),
        ConstantLength(4),
        ProductionCoins(list(range(20))),
    )
    seen: list[tuple[list[int], list[int]]] = []
    verify = engine.rule.verify

    class Watched:
        contract = "exact"

        def verify(self, draft, scores, coins):
            verdict = verify(draft, scores, coins)
            seen.append((draft.lengths.tolist(), verdict.accepted.tolist()))
            return verdict

    engine.rule = Watched()
    run(engine, 20, 30, SpecStats())
    for (before, kept), (now, accepted) in pairwise(seen):
        for row in range(20):
            known = before[row] - kept[row]  # positions of this draft that were scored before
            assert accepted[row] >= min(known, now[row])
