"""Trees that grow where the draft model is confident: exact, and really the likeliest nodes."""

from __future__ import annotations

import itertools

import pytest
from toys import EXACT, Table, TableModel, TableTarget, composed, context_at, distance, paths_to

from mmspec.draft.dynamic import DynamicTreeDrafter
from mmspec.draft.model import catch_up
from mmspec.draft.tree import TreeDrafter
from mmspec.engine.accept.kseq import KSeqRule
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.stats import SpecStats
from mmspec.engine.types import Engine, OneHot

COINS = ProductionCoins([1, 2, 3]).round(0)[0]


class Reranked(DynamicTreeDrafter):
    """The hazard: drawn siblings are re-ranked by their own probability, as "top" ones may be."""

    def propose(self, context, budget, coins):
        draft = super().propose(context, budget, coins)
        if not draft.nodes:
            return draft
        law, probs = draft.law, draft.law.probs
        values = probs.gather(2, draft.tokens[..., None])[..., 0].log()
        tokens, parents, _ = self._best(values, draft.tokens, draft.parents, draft.tokens)
        law.probs = probs[:, : self.nodes]  # one level: one law
        lengths = draft.lengths.clamp_max(self.nodes)
        return type(draft)(tokens, lengths, law, parents, bounds=draft.bounds)


def law(kind, seeds, depth, width, beam, siblings, rule, limit, nodes=32) -> float:
    target, model = Table(3, seeds[0]), Table(3, seeds[1])
    drafter = kind(TableModel(model), depth, width, beam, nodes, siblings)
    found = composed(limit, TableTarget(target), drafter, rule, depth)
    return distance(found, target.joint(limit))


@pytest.mark.parametrize("seeds", [(0, 1), (5, 6)])
@pytest.mark.parametrize(
    ("siblings", "rule"),
    [
        ("top", RecursiveRule),
        ("without-replacement", RecursiveRule),
        ("independent", RecursiveRule),
        ("independent", KSeqRule),
    ],
)
def test_joint_law(siblings, rule, seeds):
    assert law(DynamicTreeDrafter, seeds, 2, 2, 1, siblings, rule(), 3) < EXACT


def test_joint_law_of_the_likeliest_nodes():
    assert law(DynamicTreeDrafter, (0, 1), 3, 2, 2, "top", RecursiveRule(), 4, nodes=4) < EXACT


def test_hazard_drawn_siblings_ranked_by_themselves():
    """One of two drawn tokens is kept, the likelier: no longer a draw from q."""
    found = law(Reranked, (0, 1), 1, 2, 1, "without-replacement", RecursiveRule(), 2, nodes=1)
    assert found > 1e-2


@pytest.mark.parametrize("nodes", [3, 8, 20])
def test_the_likeliest_nodes_of_all(nodes):
    """With a beam that holds everything: the best of all paths, by brute force."""
    model, depth = Table(3, 9), 3
    drafter = DynamicTreeDrafter(TableModel(model), depth, 3, 27, nodes)
    context = context_at((1, 2), 2, 20)
    drafter.start(context)
    draft = drafter.propose(context, [depth, depth], COINS)
    likelihood = {(): 1.0}
    for d in range(1, depth + 1):
        for path in itertools.product(range(3), repeat=d):
            likelihood[path] = likelihood[path[:-1]] * model((1, 2, *path[:-1]))[path[-1]]
    best = sorted((-p for path, p in likelihood.items() if path))[:nodes]
    assert isinstance(draft.law, OneHot)
    for row in range(2):
        paths = paths_to(draft.tokens[row].tolist(), draft.parents[row].tolist())[1:]
        assert len(set(paths)) == nodes
        assert sorted(-likelihood[path] for path in paths) == pytest.approx(best)
        assert [len(path) for path in paths] == sorted(len(path) for path in paths)
        assert draft.depths()[row].tolist() == [len(path) - 1 for path in paths]


def test_only_the_beam_has_children():
    model = Table(4, 3)
    drafter = DynamicTreeDrafter(TableModel(model), 3, 2, 1, siblings="independent")
    context = context_at((0,), 3, 20)
    drafter.start(context)
    draft = drafter.propose(context, [3, 3, 3], COINS)
    assert draft.nodes == 6
    for row in range(3):
        parents, tokens = draft.parents[row].tolist(), draft.tokens[row].tolist()
        paths = paths_to(tokens, parents)[1:]
        for level in (1, 2):
            above = [n for n, path in enumerate(paths) if len(path) == level]
            with_children = {parents[n] for n, path in enumerate(paths) if len(path) == level + 1}
            odds = {n: model((0, *paths[n][:-1]))[tokens[n]] for n in above}
            assert {odds[n] for n in with_children} == {max(odds.values())}


def test_ragged_budgets_cut_levels():
    drafter = DynamicTreeDrafter(TableModel(Table(4, 3)), 3, 2, 2, siblings="independent")
    context = context_at((0,), 3, 20)
    drafter.start(context)
    draft = drafter.propose(context, [3, 1, 0], COINS)
    assert draft.lengths.tolist() == [10, 2, 0]
    assert drafter.propose(context, [0, 0, 0], COINS).nodes == 0


def test_whole_generation_reads_the_right_tokens():
    """`TableModel` asserts that its cache has no gap; greedily every node of its own law stands."""
    target = Table(4, 3)
    drafter = DynamicTreeDrafter(TableModel(target), 3, 2, 2)
    engine = Engine(
        TableTarget(target), drafter, RecursiveRule(), ConstantLength(3), ProductionCoins([1, 2])
    )
    stats = SpecStats()
    context = run(engine, 2, 24, stats)
    assert context.base == [24, 24]
    assert stats.mean_acceptance_length > 2


@pytest.mark.parametrize("siblings", ["top", "independent", "without-replacement"])
@pytest.mark.parametrize("kind", ["tree", "dynamic"])
def test_row_equals_itself_alone(kind, siblings):
    """Rows come differently far: each one's tree grows from its own last token."""
    target, model = Table(4, 3), Table(4, 4)

    def drafter():
        if kind == "tree":
            return TreeDrafter(TableModel(model), (2, 2, 1), siblings)
        return DynamicTreeDrafter(TableModel(model), 3, 3, 2, 6, siblings)

    def outputs(seeds: list[int]) -> tuple[list[list[int]], list[int]]:
        engine = Engine(
            TableTarget(target),
            drafter(),
            RecursiveRule(),
            ConstantLength(3),
            ProductionCoins(seeds),
        )
        stats = SpecStats()
        context = run(engine, len(seeds), 25, stats)
        return context.tokens[:, :25].tolist(), stats.calls

    together, calls = outputs(list(range(8)))
    alone = [outputs([seed]) for seed in range(8)]
    assert together == [tokens[0] for tokens, _ in alone]
    assert calls == [count[0] for _, count in alone]


def test_hazard_a_neighbours_root_is_seen(monkeypatch):
    """The same with the last column of what a ragged batch has read, as if it were every row's."""
    from mmspec.draft import tree

    def last_column(model, context, known):
        return model.extend(*catch_up(context, known))[:, -1:]

    monkeypatch.setattr(tree, "root_laws", last_column)
    with pytest.raises(AssertionError):
        test_row_equals_itself_alone("tree", "independent")
