"""Trees that grow where the draft model is confident: exact, and really the likeliest nodes."""

from __future__ import annotations

import heapq
import itertools
import math

import pytest
from toys import EXACT, Table, TableModel, TableTarget, composed, context_at, distance, paths_to

from mmspec.draft.tree import dynamic_tree as dynamic
from mmspec.draft.tree.dynamic_tree import DynamicTreeDrafter
from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.draft.tree.siblings import outlook
from mmspec.engine.accept.kseq import KSeqRule
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft
from mmspec.engine.laws import OneHot
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.models.token_model import catch_up

COINS = ProductionCoins([1, 2, 3]).round(0)[0]


SEEN = 1e-3
SIBLINGS_AND_RULE = [
    ("top", RecursiveRule),
    ("without-replacement", RecursiveRule),
    ("independent", RecursiveRule),
    ("independent", KSeqRule),
]


def law(seeds, depth, width, beam, siblings, rule, limit, nodes=32) -> float:
    """How far the law of the output is from the target's."""
    target, model = Table(3, seeds[0]), Table(3, seeds[1])
    drafter = DynamicTreeDrafter(TableModel(model), depth, width, beam, nodes, siblings)
    found = composed(limit, TableTarget(target), drafter, rule(), depth)
    return distance(found, target.joint(limit))


def worst(siblings, rule, nodes) -> float:
    """The same at most: of 4 + 2 drawn nodes, or of 6 + 4, so many are kept."""
    beams = [(beam, seed) for beam in (1, 2) for seed in range(2, 6)]
    return max(law((seed, seed + 50), 2, 2, beam, siblings, rule, 3, nodes) for beam, seed in beams)


@pytest.mark.parametrize("seeds", [(0, 1), (5, 6)])
@pytest.mark.parametrize(("siblings", "rule"), SIBLINGS_AND_RULE)
def test_joint_law(siblings, rule, seeds):
    assert law(seeds, 2, 2, 1, siblings, rule, 3) < EXACT


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("siblings", "rule"), SIBLINGS_AND_RULE)
def test_joint_law_of_the_nodes_that_are_kept(siblings, rule, nodes):
    assert worst(siblings, rule, nodes) < EXACT


@pytest.mark.parametrize("nodes", [3, 5])
def test_joint_law_where_nodes_have_more_children_than_tokens(nodes):
    """The last token is drawn again, which is worth nothing."""
    assert law((2, 9), 2, 3, 2, "without-replacement", RecursiveRule, 3, nodes) < EXACT


@pytest.mark.parametrize("siblings", ["top", "without-replacement"])
def test_joint_law_of_a_deeper_tree(siblings):
    assert law((0, 1), 3, 2, 2, siblings, RecursiveRule, 4, nodes=4) < EXACT


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
@pytest.mark.parametrize(("siblings", "rule"), SIBLINGS_AND_RULE[1:])
def test_hazard_drawn_siblings_ranked_by_themselves(monkeypatch, siblings, rule, nodes):
    """The likelier of what was drawn is kept: no longer a draw from q."""
    monkeypatch.setattr(dynamic, "outlook", lambda probs, how: probs)
    assert worst(siblings, rule, nodes) > SEEN


def test_hazard_siblings_decide_how_many_are_judged_together(monkeypatch):
    """Elder siblings may weigh on younger ones where they are judged in turn, not in K-SEQ."""
    first = "without-replacement"
    monkeypatch.setattr(dynamic, "outlook", lambda probs, how: outlook(probs, first))
    assert worst("independent", RecursiveRule, 3) < EXACT
    assert worst("independent", KSeqRule, 3) > SEEN


def best_first(model: Table, prefix, siblings, tokens, parents, nodes: int):
    """The place of the largest value is filled next: the paths in that order, and their values.

    `tokens`, `parents`: all that was drawn.
    """
    paths = paths_to(tokens, parents)
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)

    def likelihood(path) -> float:
        return math.prod(model((*prefix, *path[:d]))[token] for d, token in enumerate(path))

    positions, found, values = [(-1.0, 1, -1, 0)], [], []
    while positions and len(found) < nodes:
        value, level, parent, k = heapq.heappop(positions)
        family, path = children[parent], paths[children[parent][k] + 1]
        found.append(path)
        values.append(-value)
        if k + 1 < len(family):
            q = model((*prefix, *path[:-1]))
            elders = 0 if siblings == "independent" else sum(q[tokens[n]] for n in family[: k + 1])
            value = likelihood(path[:-1]) * max(0, 1 - elders)
            heapq.heappush(positions, (-value, level, parent, k + 1))
        if family[k] in children:
            heapq.heappush(positions, (-likelihood(path), level + 1, family[k], 0))
    return found, values


@pytest.mark.parametrize("siblings", ["without-replacement", "independent"])
@pytest.mark.parametrize("nodes", [1, 3, 6, 10, 30])
def test_kept_are_the_nodes_of_the_largest_value(siblings, nodes):
    """Against a tree that is drawn place by place, always the most valuable place next."""
    prefix, rows, depth, compared = (1, 2), 4, 3, 0
    for seed in range(12):
        model = Table(6, seed)
        coins = ProductionCoins([seed * rows + row for row in range(rows)]).round(0)[0]
        kept, whole = (
            propose(model, prefix, depth, budget, siblings, coins, rows) for budget in (nodes, 256)
        )
        assert kept.nodes == min(nodes, whole.nodes)
        assert kept.lengths.tolist() == [kept.nodes] * rows
        for row in range(rows):
            tokens, parents = whole.tokens[row].tolist(), whole.parents[row].tolist()
            expected, values = best_first(model, prefix, siblings, tokens, parents, nodes)
            found = paths_to(kept.tokens[row].tolist(), kept.parents[row].tolist())[1:]
            # places of no value may be filled in any order
            sure = sum(value > 1e-9 for value in values)
            assert found[:sure] == expected[:sure]
            compared += sure
            laws = [model((*prefix, *path[:-1])) for path in found]
            assert kept.law.probs[row].tolist() == laws
    assert compared > 12 * rows * min(nodes, whole.nodes) * 0.8


def propose(model: Table, prefix, depth, nodes, siblings, coins, rows) -> Draft:
    """A draft of 3 + 6 + 6 nodes, or what is kept of them."""
    drafter = DynamicTreeDrafter(TableModel(model), depth, 3, 2, nodes, siblings)
    context = context_at(prefix, rows, 20)
    drafter.start(context)
    return drafter.propose(context, [depth] * rows, coins)


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
        assert [-likelihood[path] for path in paths] == pytest.approx(best)
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

    def last_column(drafter, context):
        inputs, start = catch_up(context, drafter._known)
        drafter._known = list(context.base)
        return drafter.model.extend(inputs, start)[:, -1:]

    monkeypatch.setattr(TreeDrafter, "root_laws", last_column)
    with pytest.raises(AssertionError):
        test_row_equals_itself_alone("tree", "independent")
