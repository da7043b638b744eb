"""The target drafts on rounded weights, alone or with a drafter that drafts for it in turn."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from toys import EXACT, Table, TableModel, TableTarget, context_at, distance, outputs, whole_loop

from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.nested import NestedDrafter
from mmspec.draft.prompt_lookup import PromptLookupDrafter
from mmspec.draft.rounded_target import RoundedDrafter
from mmspec.draft.tree.token_recycling import RecyclingDrafter
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp
from mmspec.models.rounded_copy import RoundedCopy
from mmspec.models.target import TokenTarget

INNER = {
    "lookup": lambda vocab: PromptLookupDrafter(2),
    "model": lambda vocab: ModelDrafter(TableModel(Table(vocab, 9))),
    "recycling": lambda vocab: RecyclingDrafter(vocab, (2, 1)),
}


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize(("vocab", "limit", "ahead"), [(2, 4, 3), (3, 3, 2)])
def test_joint_law_of_three_levels(inner, vocab, limit, ahead):
    """Whatever the inner drafter says and the middle model thinks, the law is the target's."""
    target, middle = Table(vocab, 7), Table(vocab, 8)
    law = whole_loop(
        limit,
        TableTarget(target),
        lambda: NestedDrafter(TableTarget(middle), INNER[inner](vocab), 2),
        length=ConstantLength(ahead),
        at_once=1,
    )
    assert distance(law, target.joint(limit)) < EXACT


@pytest.mark.parametrize("inner", INNER)
def test_a_draft_is_drawn_from_the_middle_models_law(inner):
    """A middle model that is the target: all stands, however poorly the inner drafter drafts."""
    target = Table(4, 7)
    drafter = NestedDrafter(TableTarget(target), INNER[inner](4), 3)
    coins, rows = ProductionCoins(list(range(64))), 64
    engine = Engine(TableTarget(target), drafter, TokenRule(), ConstantLength(4), coins)
    stats = SpecStats()
    together = outputs(run(engine, rows, 15, stats))
    assert stats.accepted == stats.drafted
    assert stats.calls == [3] * rows
    for row in range(0, rows, 16):  # and no row depends on its neighbours
        engine.coins = ProductionCoins([row])
        assert outputs(run(engine, 1, 15, SpecStats())) == [together[row]]


@pytest.mark.parametrize("inner", INNER)
def test_rows_without_a_budget_wait(inner):
    """They draft nothing, their neighbours what they would draft alone, and both go on."""
    target, vocab = Table(4, 7), 4

    class Ragged(ConstantLength):
        """No draft for row 0 in every other round, and none for row 1 in the others."""

        def budget(self):
            rounds = enumerate(self._rounds)
            return [4 * (row % 2 == number % 2) for row, number in rounds]

    def drawn(rows):
        made = NestedDrafter(TableTarget(Table(4, 8)), INNER[inner](vocab), 3)
        coins = ProductionCoins(rows)
        length = Ragged(4) if len(rows) > 1 else Only(rows[0])
        stats = SpecStats()
        engine = Engine(TableTarget(target), made, TokenRule(), length, coins)
        return outputs(run(engine, len(rows), 14, stats)), stats

    class Only(ConstantLength):
        def __init__(self, row):
            super().__init__(4)
            self.row = row

        def budget(self):
            return [4 * (self.row % 2 == self._rounds[0] % 2)]

    together, stats = drawn([0, 1])
    assert min(stats.drafted) > 0
    assert [drawn([row])[0][0] for row in (0, 1)] == together


class Counted(ProductionCoins):
    """The shipped coins, which remember every number that was taken."""

    def __init__(self, seeds) -> None:
        super().__init__(seeds)
        self.taken: Counter = Counter()

    def uniform(self, number, purpose, start, count):
        self.taken.update((number, purpose, n) for n in range(start, start + count))
        return super().uniform(number, purpose, start, count)

    def picked(self, number, purpose, index):
        self.taken.update((number, purpose, n) for n in index[0].tolist())
        return super().picked(number, purpose, index)


def test_rounds_within_a_round_never_share_a_coin():
    vocab, coins = 3, Counted([5])
    drafter = NestedDrafter(TableTarget(Table(vocab, 8)), INNER["model"](vocab), 2)
    for prefix in ((), (1,), (1, 2, 0)):
        context = context_at(prefix, 1, 12)
        drafter.start(context)
        draft = drafter.propose(context, [7], coins.round(len(prefix))[0])
        assert draft.nodes == 7
    assert len(coins.taken) > 40
    assert set(coins.taken.values()) == {1}


def test_a_law_that_is_none_costs_its_node_alone():
    """It is replaced before anything is drawn by it, and what follows it is not drafted."""

    class Sick(TableTarget):
        def score(self, context, draft):
            scores = super().score(context, draft)
            for row, base in enumerate(context.base):
                for n in range(scores.laws.shape[1]):
                    if base + n == 3:
                        scores.laws[row, n] = torch.nan
            return scores

    drafter = NestedDrafter(Sick(Table(4, 7)), PromptLookupDrafter(2), 2)
    context = context_at((1,), 2, 12)
    drafter.start(context)
    draft = drafter.propose(context, [5, 2], ProductionCoins([1, 2]).round(0)[0])
    assert draft.faulty.tolist() == [True, False]
    assert bool(draft.law.probs.isfinite().all())


# --- over a network -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["alone", "nested"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unrounded_weights_draft_what_the_target_says(tiny_llamagen, guided_rows, how, temperature):
    """Over the target's cache, ragged and under guidance: a copy that rounds nothing never errs."""
    pads = [0, 2, 1]

    def generated(drafts):
        model = tiny_llamagen()
        guided = guided_rows(model, pads, warp=Warp(temperature), limit=13)[0]
        copy = RoundedCopy(guided.decoder, guided)
        made = RoundedDrafter(copy)
        if how == "nested":
            made = NestedDrafter(TokenTarget(copy), PromptLookupDrafter(2), 2)
        length = ConstantLength(3 if drafts else 0)
        coins = ProductionCoins([3, 4, 5])
        engine = Engine(TokenTarget(guided), made, TokenRule(), length, coins)
        stats = SpecStats()
        return outputs(run(engine, 3, 13, stats)), stats

    drafted, stats = generated(True)
    assert stats.accepted == stats.drafted
    assert stats.calls == [4] * 3  # 4 + 4 + 4 + 1
    if temperature == 0:
        assert drafted == generated(False)[0]


def test_what_a_copy_writes_is_never_a_fault_of_the_targets(tiny_llamagen, guided_rows):
    guided = guided_rows(tiny_llamagen(), [0, 1])[0]
    copy = RoundedCopy(guided_rows(tiny_llamagen(), [0, 1])[0].decoder, guided)
    with torch.inference_mode():
        guided.start(2)
        copy.start(2)
        copy.decoder.embeddings = copy.decoder.embeddings * torch.nan
        copy.extend(torch.zeros(2, 3, dtype=torch.long), [-1, -1])
        copy.extend(torch.zeros(2, 3, dtype=torch.long), [2, 2])
        assert bool(guided.cache.data.isfinite().all())
        assert not guided.cache.contained
