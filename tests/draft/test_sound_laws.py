"""A drafter whose laws are none behind one token: what is emitted still is the target's."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from toys import EXACT, Table, TableModel, TableTarget, composed, context_at, distance, whole_loop

from mmspec.draft import guarded
from mmspec.draft import sound_laws as sound
from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.feature.block import BlockDrafter
from mmspec.draft.guarded import GuardedDrafter
from mmspec.draft.jacobi.coupled import CoupledJacobiDrafter
from mmspec.draft.prompt_lookup import PromptLookupDrafter
from mmspec.draft.self_speculation import SelfDrafter
from mmspec.draft.tree.dynamic_tree import DynamicTreeDrafter
from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.draft.tree.merged import MergedDrafter
from mmspec.engine.accept.block import BlockRule
from mmspec.engine.accept.kseq import KSeqRule
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.accept.tree import children, walk
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft
from mmspec.engine.laws import Categorical, OneHot, WithoutReplacement
from mmspec.engine.length.stopping import ConfidenceLength, SpecDecLength

VOCAB, SEEN = 3, 1e-3
NAN, INF = math.nan, math.inf
DAMAGES = {
    "nan": [NAN] * VOCAB,
    "one nan": [0.5, NAN, 0.5],
    "inf": [0.5, INF, 0.5],
    "negative": [0.75, -0.5, 0.75],
    "nothing": [0.0] * VOCAB,
    "too much": [1.0, 1.0, 0.0],
}


class Damaged(Table):
    """A table that has no law behind a token, wherever it stands."""

    def __init__(self, seed: int, damage: str = "nan", token: int = 1) -> None:
        super().__init__(VOCAB, seed)
        self.damage, self.token, self.asked = damage, token, 0

    def __call__(self, prefix):
        if self.token in prefix[-1:]:
            self.asked += 1
            return DAMAGES[self.damage]
        return super().__call__(prefix)


class Layers(TableTarget):
    """A target that drafts for itself: what it has read is all of the output."""

    layers = 2

    def __init__(self, target: Table, model: Table) -> None:
        super().__init__(target)
        self.model = TableModel(model)

    def start(self, rows: int) -> None:
        self.model.start(rows)

    def extend(self, tokens, start, use=None):
        for row, first in enumerate(start):
            self.model.seen[row] += [0] * (first + 1 - len(self.model.seen[row]))
        return self.model.extend(tokens, start)


class Blocks:
    """Says the laws of two tokens at once, as if the first were the likeliest."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def start(self, rows: int) -> None:
        pass

    def block(self, context, drafted):
        laws = []
        rows = zip(context.tokens.tolist(), context.base, drafted.tolist(), strict=True)
        for tokens, base, more in rows:
            prefix = (*tokens[:base], *more)
            first = self.table(prefix)
            laws.append([first, self.table((*prefix, 0))])
        return torch.tensor(laws, dtype=torch.float64)


# --- which laws are none --------------------------------------------------------------------------


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_laws(damage):
    good = [0.25, 0.75, 0.0]
    laws = torch.tensor([[good, DAMAGES[damage], good]], dtype=torch.float64)
    assert sound.sound(laws).tolist() == [[True, False, True]]
    mended, which = sound.mended(laws)
    assert which.tolist() == [[True, False, True]]
    assert mended.tolist() == [[good, [1 / VOCAB] * VOCAB, good]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rounded_laws_are_laws(dtype):
    logits = torch.randn(8, 5000, generator=torch.Generator().manual_seed(0))
    assert sound.sound(logits.softmax(-1).to(dtype)).all()


def test_a_chain_ends_in_front_of_a_fault():
    draft = Draft(
        torch.tensor([[0, 1, 2]] * 3), torch.tensor([3, 1, 3]), Categorical(torch.empty(0))
    )
    good = torch.tensor([[True, False, True], [True, False, True], [True, True, True]])
    assert sound.faults(good, draft).tolist() == [True, False, False]
    assert sound.without_faults(draft, good).lengths.tolist() == [1, 1, 3]


def test_a_tree_loses_a_branch():
    """Node 1 fails: 3 hangs below it, 4 below that; 0, 2 and 5 stay where they are."""
    parents = torch.tensor([[-1, -1, 0, 1, 3, 2]])
    laws = torch.rand(1, 6, VOCAB)
    draft = Draft(torch.arange(6)[None], torch.tensor([6]), WithoutReplacement(laws), parents)
    good = torch.tensor([[True, False, True, True, True, True]])
    left = sound.without_faults(draft, good)
    assert left.live().tolist() == good.tolist()
    below = children(left)
    assert below[0, :, 0].tolist() == [0, 2, 3, 5, 4, -1, -1]
    # what the root's children lead to is all that can stand
    reached, *_ = walk(left, below, torch.ones(1, 6, dtype=torch.bool))
    assert reached[0, :2].tolist() == [0, 2]


# --- exact by enumeration -------------------------------------------------------------------------

CHAINS = {
    "model": lambda table: ModelDrafter(TableModel(table)),
    "block": lambda table: BlockDrafter(Blocks(table)),
    "top block": lambda table: BlockDrafter(Blocks(table), "top"),
    "merged": lambda table: MergedDrafter(
        [CoupledJacobiDrafter(VOCAB), ModelDrafter(TableModel(table))], 3
    ),
}


def law_of(drafter, rule, seed: int, limit: int = 3, depth: int = 2) -> float:
    target = Table(VOCAB, seed)
    found = composed(limit, TableTarget(target), drafter, rule, depth)
    return distance(found, target.joint(limit))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", CHAINS)
def test_chains(kind, damage):
    for seed, rule in product((2, 7), (TokenRule, BlockRule)):
        table = Damaged(seed + 1, damage, 0 if kind == "top block" else 1)
        made = RecursiveRule() if kind == "merged" else rule()
        assert law_of(CHAINS[kind](table), made, seed) < EXACT
        assert table.asked


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_target_that_drafts_for_itself(damage):
    target, table = Table(VOCAB, 2), Damaged(3, damage)
    layers = Layers(target, table)
    law = composed(3, layers, SelfDrafter(layers, [(0, 1)]), TokenRule(), 2)
    assert distance(law, target.joint(3)) < EXACT
    assert table.asked


DRAWN = [
    ("without-replacement", RecursiveRule),
    ("independent", RecursiveRule),
    ("independent", KSeqRule),
]
TREES = [("top", RecursiveRule), *DRAWN]


@pytest.mark.parametrize("damage", ["nan", "one nan", "inf", "negative"])
@pytest.mark.parametrize(("siblings", "rule"), TREES)
def test_fixed_trees(siblings, rule, damage):
    table = Damaged(3, damage)
    assert law_of(TreeDrafter(TableModel(table), (2, 1), siblings), rule(), 2) < EXACT
    assert table.asked


def grown(seed, damage, siblings, rule, nodes, beam=2) -> float:
    drafter = DynamicTreeDrafter(
        TableModel(Damaged(seed + 50, damage)), 2, 2, beam, nodes, siblings
    )
    return law_of(drafter, rule(), seed)


@pytest.mark.parametrize("damage", ["nan", "one nan", "inf", "negative"])
@pytest.mark.parametrize(("siblings", "rule"), TREES)
def test_dynamic_trees(siblings, rule, damage):
    """Of six drawn nodes those are kept that the values say, and no NaN is among these."""
    for seed, nodes in product((2, 3), (2, 3, 4)):
        assert grown(seed, damage, siblings, rule, nodes) < EXACT


@pytest.mark.parametrize(("siblings", "rule"), DRAWN)
def test_a_deeper_dynamic_tree(siblings, rule):
    """What hangs two levels below a fault has a likelihood that was NaN as well."""
    for seed, nodes in ((2, 2), (3, 3)):
        model = TableModel(Damaged(seed + 50))
        drafter = DynamicTreeDrafter(model, 3, 2, 1, nodes, siblings)
        assert law_of(drafter, rule(), seed, limit=4, depth=3) < EXACT


def test_a_fault_stays_in_its_branch(tiny_llamagen, guided_rows):
    """A mask hides no NaN: nodes beside a faulty one are read as if it were not there."""
    network = tiny_llamagen()
    with torch.no_grad():
        network.tok_embeddings.weight[5] = NAN
    #       5   2
    #       |   |
    #       3   4
    parents = torch.tensor([[-1, -1, 0, 1]])
    tree = Draft(torch.tensor([[5, 2, 3, 4]]), torch.tensor([4]), OneHot(), parents)
    laws = {}
    for drafts in (True, False):
        model, *_ = guided_rows(network, [1])
        model.drafts = drafts
        model.start(1)
        laws[drafts] = model.extend(torch.tensor([[0, 5, 2, 3, 4]]), [-1], tree)[0]
    alone, *_ = guided_rows(network, [1])
    alone.start(1)
    expected = alone.extend(torch.tensor([[0, 2, 4]]), [-1])[0]
    assert torch.allclose(laws[True][[0, 2, 4]], expected, atol=1e-12)
    assert laws[True][1].isnan().all()
    assert laws[False].isnan().all()  # of a target, that is to be seen


@pytest.mark.parametrize("damage", ["nan", "inf"])
def test_merged_trees(damage):
    """A grown tree behind what was looked up, and less of it than was drawn."""
    table = Damaged(60, damage)
    tree = DynamicTreeDrafter(TableModel(table), 2, 2, 2, 4, "without-replacement")
    merged = MergedDrafter([PromptLookupDrafter(2), tree], 4)
    assert law_of(merged, RecursiveRule(), 2, 4) < EXACT
    assert table.asked


# --- drafters of others: nobody has looked at their laws ------------------------------------------


class Unseen:
    """Drafts as another does, says the laws as they were given, and no word about them."""

    def __init__(self, drafter, damage: str) -> None:
        self.drafter, self.damage = drafter, torch.tensor(DAMAGES[damage], dtype=torch.float64)

    def start(self, context) -> None:
        self.drafter.start(context)

    def propose(self, context, budget, coins):
        draft = self.drafter.propose(context, budget, coins)
        even = (draft.law.probs == 1 / VOCAB).all(-1, keepdim=True)
        law = type(draft.law)(torch.where(even, self.damage, draft.law.probs))
        lengths = torch.tensor(budget) if draft.parents is None else draft.lengths
        return replace(draft, law=law, lengths=lengths, faulty=None)

    def observe(self, context, draft, scores, verdict) -> None:
        self.drafter.observe(context, draft, scores, verdict)


def unseen(table: Table, kind: str) -> GuardedDrafter:
    model = TableModel(table)
    chain = kind == "chain"
    drafter = ModelDrafter(model) if chain else TreeDrafter(model, (2, 1), kind)
    return GuardedDrafter(Unseen(drafter, table.damage), VOCAB, 8)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("kind", "rule"), [("chain", TokenRule), ("chain", BlockRule), *DRAWN])
def test_the_guard_takes_faulty_nodes_out(kind, rule, damage):
    table = Damaged(3, damage)
    assert law_of(unseen(table, kind), rule(), 2) < EXACT
    assert table.asked


def test_hazard_a_whole_row_is_thrown_away(monkeypatch):
    """Rows that drew token 1 then are those that owe it to the target alone."""

    def emptied(draft, good):
        return replace(draft, lengths=draft.lengths.masked_fill(sound.faults(good, draft), 0))

    monkeypatch.setattr(guarded, "without_faults", emptied)
    found = [law_of(unseen(Damaged(seed), "chain"), TokenRule(), seed) for seed in range(4)]
    assert max(found) > SEEN


@pytest.mark.parametrize("kind", ["model", "confidence", "dynamic"])
def test_a_whole_generation(kind, caplog):
    """The drafter is given up behind the faulty round: still the target's law."""
    target = Table(VOCAB, 2)

    def drafter():
        model = TableModel(Damaged(3))
        if kind == "dynamic":
            return GuardedDrafter(DynamicTreeDrafter(model, 2, 2, 1, 2, "top"), VOCAB, 8)
        more = ConfidenceLength(2, 0.4).more if kind == "confidence" else None
        return GuardedDrafter(ModelDrafter(model, more), VOCAB, 8)

    with caplog.at_level(logging.WARNING):
        law = whole_loop(3, TableTarget(target), drafter, RecursiveRule(), at_once=1)
    assert distance(law, target.joint(3)) < EXACT
    assert "laws that are none" in caplog.text


# --- confidences ----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [ConfidenceLength(3, 0.5), SpecDecLength(3, 0.5)])
def test_confidence_in_no_law_is_that_of_an_even_one(length):
    length.start(4)
    drafter = ModelDrafter(TableModel(Damaged(3, token=0)), length.more)
    context = context_at((0,), 4, 20)
    drafter.start(context)
    draft = drafter.propose(context, [3] * 4, ProductionCoins([1, 2, 3, 4]).round(0)[0])
    assert draft.lengths.tolist() == [1] * 4
    assert draft.faulty.all()
    assert (draft.law.probs == 1 / VOCAB).all()
