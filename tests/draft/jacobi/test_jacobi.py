"""The Jacobi window: which law each position carries. Exactness is tested with the token rule."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from toys import EXACT, close, context_at

from mmspec.draft.jacobi.coupled import CoupledJacobiDrafter
from mmspec.draft.jacobi.jacobi import JacobiDrafter
from mmspec.engine.accept.chain import prefix_verdict
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import Categorical, OneHot
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.proof.enumeration import enumerate_law
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats

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


# --- coupled windows ------------------------------------------------------------------------------


def random_laws(count: int, vocab: int, seed: int) -> list[list[float]]:
    """Laws of which about a quarter of the entries are zero, never the first one."""
    dice, laws = random.Random(seed), []
    for _ in range(count):
        weights = [dice.random() * (n == 0 or dice.random() < 0.75) for n in range(vocab)]
        laws.append([w / sum(weights) for w in weights])
    return laws


def moved(old: list[int], q, p, kept: int, real: int | None = None) -> dict:
    """The law of the tokens of the next window, by enumeration.

    Args:
        old: tokens of the last window, drawn from `q`; `real` of them are no filling.
        p: what the target said, one law more than tokens.
        kept: tokens that stood.
    """

    def shipped(coins, rows):
        drafter, context = CoupledJacobiDrafter(len(p[0])), context_at((), rows, 20)
        drafter.start(context)
        tokens = torch.tensor(old).expand(rows, -1)
        doubles = (torch.tensor(x, dtype=torch.float64) for x in (q, p))
        laws, scores = (x.expand(rows, -1, -1) for x in doubles)
        lengths = torch.full((rows,), len(old) if real is None else real)
        draft = Draft(tokens, lengths, Categorical(laws))
        verdict = prefix_verdict(draft, torch.full((rows,), kept), torch.zeros(rows).long())
        context.base, context.lengths = [kept + 1] * rows, context.lengths + kept + 1
        drafter.observe(context, draft, Scores(scores), verdict)
        window = drafter.propose(context, [len(old) - kept] * rows, coins)
        return [tuple(tokens) for tokens in window.tokens.tolist()]

    return enumerate_law(shipped)


def coupled(x: int, q, p) -> list[float]:
    """Where a token x drawn from q goes as its law becomes p: the maximal coupling, by hand."""
    stays = min(1.0, p[x] / q[x])
    left = [max(0.0, b - a) for a, b in zip(q, p, strict=True)]
    mass = sum(left) or 1.0
    return [(1 - stays) * w / mass + stays * (y == x) for y, w in enumerate(left)]


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_a_token_moves_no_further_than_its_law(seed, kept):
    """Every token stays or goes to what its law has gained; the one that is new follows its law."""
    q, p = random_laws(3, 3, seed), random_laws(4, 3, seed + 9)
    old = [next(x for x in (2, 1, 0) if law[x] > 0) for law in q]
    law = {(): 1.0}
    for place in range(3 - kept):  # place j of the next window was the last one's kept + 1 + j
        index = kept + 1 + place
        odds = coupled(old[index], q[index], p[index]) if index < 3 else p[3]
        law = {(*out, y): w * odds[y] for out, w in law.items() for y in range(3) if odds[y] > 0}
    assert close(moved(old, q, p, kept), law)


def test_tokens_follow_their_new_law():
    """Over all that the old token may have been, the new one has the law p."""
    q, p = random_laws(2, 4, 1), random_laws(3, 4, 2)
    found = [0.0] * 4
    for x in range(4):
        if q[1][x] > 0:
            for (y, _), w in moved([0, x], q, p, 0).items():
                found[y] += q[1][x] * w
    assert found == pytest.approx(p[1], abs=EXACT)


def test_filling_is_not_kept():
    """What stands behind a row's own nodes was drawn from nothing: such a place follows its law."""
    q, p = random_laws(3, 3, 5), random_laws(4, 3, 6)
    old = [0, 0, 0]
    law = moved(old, q, p, 0, real=2)
    # place 0 was node 1; place 1 has the last law that is the row's own, and no token
    first, second = coupled(0, q[1], p[1]), p[2]
    for y in range(3):
        for z in range(3):
            total = sum(w for out, w in law.items() if out[:2] == (y, z))
            assert total == pytest.approx(first[y] * second[z], abs=EXACT)


def test_a_law_that_stays_keeps_its_token():
    q = random_laws(3, 3, 7)
    old = [next(x for x in (2, 1, 0) if law[x] > 0) for law in q]
    law = moved(old, q, [*q, q[2]], 0)
    assert {out[:2] for out in law} == {tuple(old[1:])}


class Noting(JacobiDrafter):
    """Notes which positions are new to its window."""

    def entering(self, context, laws, new):
        self.new = new.clone()
        return super().entering(context, laws, new)


def test_a_sample_that_is_seated_begins_as_one_of_its_own():
    """Nothing was scored of its window, whatever its row had reached."""
    drafter, context = Noting(VOCAB), context_at((), 2, 9)
    drafter.start(context)
    coins = ProductionCoins([0, 1]).round(0)[0]
    first = drafter.propose(context, [3, 3], coins)
    assert bool(drafter.new.all())
    laws = torch.rand(2, 4, VOCAB, generator=torch.Generator().manual_seed(0)).double()
    scores = Scores(laws / laws.sum(-1, keepdim=True))
    verdict = prefix_verdict(first, torch.tensor([0, 1]), torch.tensor([1, 2]))
    drafter.observe(context, first, scores, verdict)
    drafter.seat(context, [0])
    again = drafter.propose(context, [3, 3], coins)
    assert drafter.new.tolist() == [[True] * 3, [False, False, True]]
    assert torch.equal(again.law.probs[0], first.law.probs[0])
