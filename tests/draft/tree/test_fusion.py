"""Equal prefixes of merged trees are one node: exact, nothing scored twice, and more is reached."""

from __future__ import annotations

import pytest
import torch
from toys import (
    EXACT,
    Table,
    TableModel,
    TableTarget,
    composed,
    context_at,
    distance,
    one_round,
    outputs,
    paths_to,
    whole_loop,
)

from mmspec.draft.jacobi.coupled import CoupledJacobiDrafter
from mmspec.draft.prompt_lookup import PromptLookupDrafter
from mmspec.draft.shared_coins import OffsetCoins
from mmspec.draft.tree import dynamic_tree as dynamic
from mmspec.draft.tree import merged
from mmspec.draft.tree.dynamic_tree import DynamicTreeDrafter
from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.draft.tree.merged import MergedDrafter, first_equal
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import Categorical, OneHot, WithoutReplacement
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp

COINS = ProductionCoins([1, 2, 3]).round(0)[0]
SEEN = 1e-3


class Chosen:
    """Drafts the same tokens in every round: a chain, or a tree with `parents`."""

    def __init__(self, tokens: list[int], parents: list[int] | None = None) -> None:
        parents = list(range(-1, len(tokens) - 1)) if parents is None else parents
        self.tokens, self.parents = torch.tensor(tokens), torch.tensor(parents)
        self.depths = torch.tensor([len(path) for path in paths_to(tokens, parents)[1:]])

    def start(self, context) -> None:
        pass

    def propose(self, context, budget, coins) -> Draft:
        most = torch.tensor(budget)[:, None]
        nodes = int((self.depths <= max(budget)).sum())  # deeper ones stand further back
        rows = (context.rows, -1)
        return Draft(
            self.tokens[:nodes].expand(rows),
            (self.depths <= most).sum(1),
            OneHot(),
            self.parents[:nodes].expand(rows),
        )

    def observe(self, context, draft, scores, verdict) -> None:
        pass


def tree(widths: tuple[int, ...], siblings: str):
    return lambda model: TreeDrafter(TableModel(model), widths, siblings)


def grown(siblings: str, nodes: int = 4):
    """Of 2 + 4 drawn nodes, `nodes` are kept."""
    return lambda model: DynamicTreeDrafter(TableModel(model), 2, 2, 2, nodes, siblings)


PARTS = {
    "chain": lambda model: Chosen([1, 2]),
    "fork": lambda model: Chosen([2, 1, 0, 0], [-1, -1, 1, 0]),
    "lookup": lambda model: PromptLookupDrafter(2),
    "without": tree((2, 1), "without-replacement"),
    "pair": tree((2,), "without-replacement"),
    "one": tree((1,), "independent"),
    "independent": tree((2, 1), "independent"),
    "wide": tree((2, 2), "independent"),  # a token drawn twice: four children where two may stand
    "top": lambda model: DynamicTreeDrafter(TableModel(model), 2, 2, 1),
    "drawn": grown("without-replacement"),
    "drawn independently": grown("independent"),
}


def fused(kind, names: list[str], model: Table, nodes: int = 256) -> MergedDrafter:
    return kind([PARTS[name](model) for name in names], nodes)


def worst(kind, names, nodes=256, depth=2) -> float:
    """How far the law of the output is from the target's, at most."""
    found = []
    for seed in range(2, 8):
        target, model = Table(3, seed), Table(3, seed + 50)
        drafter = fused(kind, names, model, nodes)
        law = composed(depth + 1, TableTarget(target), drafter, RecursiveRule(), depth)
        found.append(distance(law, target.joint(depth + 1)))
    return max(found)


@pytest.mark.parametrize(
    "names",
    [
        ["without", "chain"],
        ["chain", "without"],
        ["independent", "fork"],
        ["fork", "independent"],
        ["top", "chain", "one"],
        ["one", "top"],
        ["pair", "without"],
        ["lookup", "top"],
        ["wide"],
    ],
    ids=str,
)
def test_joint_law(names):
    assert worst(MergedDrafter, names) < EXACT


@pytest.mark.parametrize("nodes", [2, 3, 4])
@pytest.mark.parametrize("names", [["independent", "fork"], ["fork", "without"]], ids=str)
def test_joint_law_where_not_all_nodes_fit(names, nodes):
    assert worst(MergedDrafter, names, nodes) < EXACT


@pytest.mark.parametrize(
    "nodes", [2, 4, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 6))]
)
@pytest.mark.parametrize("siblings", ["drawn", "drawn independently"])
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("other", ["chain", "lookup"])
def test_joint_law_where_a_drawn_tree_is_cut(other, order, siblings, nodes):
    """To its own budget, and behind what is retrieved to what that leaves."""
    assert worst(MergedDrafter, [other, siblings][::order], nodes) < EXACT


def test_joint_law_of_a_cut_tree_with_a_coupled_window():
    target, model = Table(2, 7), Table(2, 8)
    law = whole_loop(
        3,
        TableTarget(target),
        lambda: MergedDrafter([CoupledJacobiDrafter(2), PARTS["drawn"](model)], 5),
        rule=RecursiveRule(),
    )
    assert distance(law, target.joint(3)) < EXACT


@pytest.mark.parametrize("names", [["pair", "without"], ["lookup", "top"], ["chain", "one"]])
def test_joint_law_where_the_draft_model_is_the_target(names):
    """Its nodes fall only for what elder siblings have taken."""
    target = Table(3, 7)
    drafter = fused(MergedDrafter, names, target)
    law = composed(3, TableTarget(target), drafter, RecursiveRule(), 2)
    assert distance(law, target.joint(3)) < EXACT


# --- hazards --------------------------------------------------------------------------------------


class OriginalLaw(MergedDrafter):
    """What differs from its elder siblings is judged as if it could have been equal to them."""

    def _merge(self, drafts):
        draft = super()._merge(drafts)
        if isinstance(draft.law, WithoutReplacement):
            draft.law = Categorical(draft.law.probs)
        return draft


def last_equal(tokens, parents, live, levels):
    """Of equal nodes the last one stays: so the drawn one, where a chosen one is equal to it."""
    back = first_equal(tokens.flip(1), torch.full_like(parents, -1), live.flip(1), levels)
    return tokens.shape[1] - 1 - back.flip(1)


def by_token(tokens, parents, live, levels):
    """Nodes of one level and token are one, whatever is above them."""
    depths = Draft(tokens, live.sum(1), OneHot(), parents).depths()
    return first_equal(tokens + 3 * depths, torch.full_like(parents, -1), live, levels)


@pytest.mark.parametrize("siblings", ["drawn", "drawn independently"])
def test_hazard_drawn_nodes_ranked_by_themselves(monkeypatch, siblings):
    monkeypatch.setattr(dynamic, "outlook", lambda probs, how: probs)
    assert worst(MergedDrafter, ["chain", siblings], 3) > SEEN


def test_hazard_original_law():
    assert worst(OriginalLaw, ["one", "pair"], depth=1) > SEEN


def test_hazard_the_drawn_one_stays(monkeypatch):
    monkeypatch.setattr(merged, "first_equal", last_equal)
    assert worst(MergedDrafter, ["chain", "one"], depth=1) > SEEN


def test_hazard_fused_below_the_wrong_parent(monkeypatch):
    monkeypatch.setattr(merged, "first_equal", by_token)
    assert worst(MergedDrafter, ["without", "fork"]) > SEEN


class Refilling(MergedDrafter):
    """Places of fused nodes are filled though a coupled window keeps its tokens."""

    def __init__(self, drafters, nodes) -> None:
        super().__init__(drafters, nodes)
        self._refills = True


@pytest.mark.parametrize(("kind", "exact"), [(MergedDrafter, True), (Refilling, False)])
def test_a_coupled_window_is_not_looked_at(kind, exact):
    """Whether the last drafter's node fits would tell that tokens of the window are equal to the
    tree's, also those that nobody has judged and that the next round takes for unseen draws."""
    target = Table(2, 11)
    law = whole_loop(
        4,
        TableTarget(target),
        lambda: kind([CoupledJacobiDrafter(2), Chosen([1, 1, 1]), Chosen([0])], 4),
        rule=RecursiveRule(),
        length=ConstantLength(3),
    )
    found = distance(law, target.joint(4))
    assert found < EXACT if exact else found > SEEN


# --- what stands where ----------------------------------------------------------------------------


def random_draft(rows: int, vocab: int, generator: torch.Generator) -> Draft:
    """A tree per row: any laws, any shape that puts parents first."""

    def below(most: int, *shape: int) -> torch.Tensor:
        return torch.randint(most, shape, generator=generator)

    nodes = int(below(6)) + 1
    parents = torch.stack([below(n + 1, rows) - 1 for n in range(nodes)], 1)
    probs = torch.rand(rows, nodes, vocab, generator=generator).double()
    kinds = [OneHot(), Categorical(probs), WithoutReplacement(probs)]
    return Draft(below(vocab, rows, nodes), below(nodes + 1, rows), kinds[int(below(3))], parents)


def slowly(drafts: list[Draft], row: int, nodes: int, refills: bool):
    """Node by node: the paths that stay, the law of each, and every draft's own paths that fit."""
    kept: dict[tuple[int, ...], list[float]] = {}
    own, taken = [], 0
    for draft in drafts:
        own.append([])
        paths = paths_to(draft.tokens[row].tolist(), draft.parents[row].tolist())[1:]
        for n, path in enumerate(paths[: int(draft.lengths[row])]):
            if path not in kept or not refills:
                taken += 1
            if taken > nodes:
                continue
            own[-1].append(path)
            one_hot = torch.eye(3, dtype=torch.float64)[path[-1]]
            q = one_hot if isinstance(draft.law, OneHot) else draft.law.probs[row, n]
            kept.setdefault(path, q.tolist())
    return kept, own


class Told(Chosen):
    """Remembers what it was told of a draft that it did not make itself."""

    def __init__(self) -> None:
        pass

    def observe(self, context, draft, scores, verdict) -> None:
        self.told = draft.lengths, scores.probs


@pytest.mark.parametrize("refills", [True, False])
@pytest.mark.parametrize("nodes", [2, 4, 64])
def test_layout_equals_a_walk_over_the_nodes(nodes, refills):
    generator, dropped = torch.Generator().manual_seed(nodes), 0
    for _ in range(40):
        drafts = [random_draft(3, 3, generator) for _ in range(3)]
        parts = [Told() for _ in drafts]
        drafter = MergedDrafter(parts, nodes)
        drafter._refills = refills
        whole = drafter._merge(drafts)
        assert bool((whole.parents < torch.arange(whole.nodes)).all())
        scores = torch.rand(3, whole.nodes + 1, 3, generator=generator)
        drafter.observe(None, whole, Scores(scores), None)
        for row in range(3):
            kept, own = slowly(drafts, row, nodes, refills)
            length = int(whole.lengths[row])
            paths = paths_to(whole.tokens[row].tolist(), whole.parents[row].tolist())[1:]
            assert paths[:length] == list(kept)
            if not isinstance(whole.law, OneHot):
                assert whole.law.probs[row, :length].tolist() == list(kept.values())
            dropped += sum(map(len, own)) - length
            for part, mine in zip(parts, own, strict=True):
                lengths, seen = part.told
                assert lengths[row] == len(mine)
                slots = [0] + [paths.index(path) + 1 for path in mine]
                assert torch.equal(seen[row, : len(slots)], scores[row, slots])
    assert dropped > 10


@pytest.mark.parametrize("depth", [1, 2, 7, 8, 9])
def test_one_token_at_any_distance_makes_a_difference(depth):
    """A chain, and one behind it for each of its tokens that differs from it in that one alone."""
    chains = [[1] * depth] + [[0 if n == m else 1 for n in range(depth)] for m in range(depth)]
    parents = [n - 1 if n % depth else -1 for n in range(depth * (depth + 1))]
    tokens = torch.tensor([[token for chain in chains for token in chain]])
    live = torch.ones_like(tokens, dtype=torch.bool)
    seen: dict[tuple[int, ...], int] = {}
    paths = paths_to(tokens[0].tolist(), parents)[1:]
    expected = [seen.setdefault(path, n) for n, path in enumerate(paths)]
    assert first_equal(tokens, torch.tensor([parents]), live, depth)[0].tolist() == expected


# --- what it is good for --------------------------------------------------------------------------


def unfused(tokens, parents, live, levels):
    """Every node is equal to itself alone."""
    return torch.arange(tokens.shape[1]).expand_as(tokens)


def test_a_retrieved_branch_goes_on_where_the_tree_ends(monkeypatch):
    """The model's tree reaches one token ahead, the retrieval three: fused they stand together."""

    def emitted(nodes: int) -> list[int]:
        drafter = MergedDrafter([Chosen([1, 2], [-1, -1]), Chosen([1, 0, 2])])
        draft = drafter.propose(context_at((), 1, 9), [3], COINS)
        assert int(draft.lengths) == nodes
        laws = torch.zeros(1, draft.nodes + 1, 3, dtype=torch.float64)
        for slot, path in enumerate(paths_to(draft.tokens[0].tolist(), draft.parents[0].tolist())):
            laws[0, slot, (1, 0, 2, 1)[len(path)]] = 1.0  # the target says 1 0 2 1
        verdict = RecursiveRule().verify(draft, Scores(laws), ProductionCoins([0]).round(0)[1])
        return verdict.emitted[0, : int(verdict.counts)].tolist()

    assert emitted(4) == [1, 0, 2, 1]
    monkeypatch.setattr(merged, "first_equal", unfused)
    assert emitted(5) == [1, 0]  # the first 1 stands, and nothing follows it


@pytest.mark.parametrize("nodes", [3, 4, 5])
def test_more_is_emitted_with_the_same_nodes(monkeypatch, nodes):
    """Mean tokens of a first round, exactly: for no target fewer, for some more."""

    def emitted() -> list[float]:
        means = []
        for seed in range(6):
            drafter = fused(MergedDrafter, ["chain", "without"], Table(3, seed + 50), nodes)
            law = one_round((), 3, TableTarget(Table(3, seed)), drafter, RecursiveRule(), 2)
            means.append(sum(len(out) * probability for out, probability in law.items()))
        return means

    with_fusion = emitted()
    monkeypatch.setattr(merged, "first_equal", unfused)
    gains = [a - b for a, b in zip(with_fusion, emitted(), strict=True)]
    assert min(gains) > -EXACT
    assert max(gains) > 0.3


def test_retrieval_takes_the_place_of_the_least_likely_nodes():
    """Row 0 repeats itself and row 1 does not: its tree keeps all of its nodes."""
    model, nodes, depth = Table(4, 9), 9, 3
    parts = [PromptLookupDrafter(2), DynamicTreeDrafter(TableModel(model), depth, 4, 64, nodes)]
    drafter = MergedDrafter(parts, nodes)
    context = context_at((1, 2, 1, 2), 2, 20)
    context.tokens[1, :4] = torch.tensor([3, 0, 1, 2])
    drafter.start(context)
    draft = drafter.propose(context, [depth, depth], COINS)
    assert draft.lengths.tolist() == [nodes, nodes]
    for row, retrieved in enumerate([[(1,), (1, 2), (1, 2, 1)], []]):
        prefix = tuple(context.tokens[row, :4].tolist())
        likelihood = {(): 1.0}
        for path in list_paths(4, depth):
            likelihood[path] = likelihood[path[:-1]] * model((*prefix, *path[:-1]))[path[-1]]
        rest = [path for path in likelihood if path and path not in retrieved]
        rest.sort(key=lambda path: -likelihood[path])
        paths = paths_to(draft.tokens[row].tolist(), draft.parents[row].tolist())[1:]
        assert paths[: len(retrieved)] == retrieved
        assert set(paths) == {*retrieved, *rest[: nodes - len(retrieved)]}


@pytest.mark.parametrize("siblings", ["without-replacement", "independent"])
def test_retrieval_takes_the_place_of_drawn_nodes(siblings):
    """What the tree is alone, less its last nodes where row 0 has found something new."""
    model, nodes, depth = Table(16, 9), 4, 3
    coins = ProductionCoins([1, 2]).round(0)[0]
    context = context_at((1, 2, 1, 2), 2, 20)
    context.tokens[1, :4] = torch.tensor([3, 0, 1, 2])

    def tree() -> DynamicTreeDrafter:
        return DynamicTreeDrafter(TableModel(model), depth, 3, 2, nodes, siblings)

    drafter, alone = MergedDrafter([PromptLookupDrafter(2), tree()], nodes), tree()
    drafter.start(context)
    alone.start(context)
    whole = drafter.propose(context, [depth, depth], coins)
    own = alone.propose(context, [depth, depth], OffsetCoins(coins, 256))
    for row, retrieved in enumerate([[(1,), (1, 2), (1, 2, 1)], []]):
        paths = paths_to(own.tokens[row].tolist(), own.parents[row].tolist())[1:]
        expected = list(dict.fromkeys([*retrieved, *paths]))[:nodes]
        found = paths_to(whole.tokens[row].tolist(), whole.parents[row].tolist())[1:]
        assert found[: int(whole.lengths[row])] == expected
        assert bool(retrieved) == (paths[-1] not in expected)  # no repeats in these


def list_paths(vocab: int, depth: int) -> list[tuple[int, ...]]:
    """All paths of up to `depth` tokens, short ones first."""
    level, out = [()], []
    for _ in range(depth):
        level = [(*path, token) for path in level for token in range(vocab)]
        out += level
    return out


@pytest.mark.parametrize("names", [["without", "lookup"], ["lookup", "top"], ["top", "fork"]])
def test_greedily_the_plain_output(names):
    target = Table(3, 4, Warp(temperature=0))
    drafter = fused(MergedDrafter, names, Table(3, 5), nodes=5)
    coins = ProductionCoins([1, 2, 3])
    stats = SpecStats()
    context = run(
        Engine(TableTarget(target), drafter, RecursiveRule(), ConstantLength(2), coins),
        3,
        24,
        stats,
    )
    assert outputs(context) == [target.greedy(24)] * 3
    assert stats.mean_acceptance_length > 1
