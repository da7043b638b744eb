"""The greedy rule: whatever is drafted, the output is plain greedy decoding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import FixedDrafter, Table, TableTarget, categorical, drafters, outputs

from mmspec.engine.accept import greedy_naive
from mmspec.engine.accept.greedy import GreedyRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import ContractError, OneHot
from mmspec.engine.length.constant import ConstantLength, HeuristicLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats


class NoCoins:
    """The greedy rule needs no chance."""

    def __getattr__(self, name):
        raise AssertionError(f"a coin was used: {name}")


def emitted(drafted: list[list[int]], p: list, lengths: list[int], law=None) -> list[tuple]:
    draft = Draft(
        torch.tensor(drafted).long().view(len(p), -1), torch.tensor(lengths), law or OneHot()
    )
    verdict = GreedyRule().verify(draft, Scores(torch.tensor(p, dtype=torch.float64)), NoCoins())
    assert torch.equal(verdict.counts, verdict.accepted + 1)
    rows = zip(verdict.emitted.tolist(), verdict.counts.tolist(), strict=True)
    return [tuple(tokens[:count]) for tokens, count in rows]


@st.composite
def batches(draw):
    """Rows of (drafted, laws, length); few weights, so that ties are common."""
    vocab, nodes = draw(st.integers(2, 5)), draw(st.integers(0, 4))
    token = st.integers(0, vocab - 1)
    weights = st.lists(st.integers(0, 3), min_size=vocab, max_size=vocab).filter(any)
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        p = [[w / sum(law) for w in law] for law in [draw(weights) for _ in range(nodes + 1)]]
        # follow the argmax for a while, or acceptance would stop at once
        agree = draw(st.integers(0, nodes))
        best = [law.index(max(law)) for law in p]
        drafted = best[:agree] + [draw(token) for _ in range(nodes - agree)]
        rows.append((drafted, p, draw(st.integers(0, nodes))))
    return rows


@settings(max_examples=200, deadline=None, derandomize=True)
@given(batches())
def test_equals_naive(rows):
    """Ragged: row b has `lengths[b]` real nodes, and filling behind them."""
    drafted, p, lengths = (list(column) for column in zip(*rows, strict=True))
    out = emitted(drafted, p, lengths)
    for row, (tokens, laws, n) in enumerate(rows):
        assert greedy_naive.greedy_rule(tokens[:n], laws[: n + 1]) == {out[row]: 1.0}


def test_ties_go_to_the_lower_id():
    tied = [[0.1, 0.45, 0.45], [0.4, 0.2, 0.4]]
    assert emitted([[1]], [tied], [1]) == [(1, 0)]
    assert emitted([[2]], [tied], [1]) == [(1,)]


def test_law_of_the_draft_does_not_matter():
    p = [[[0.2, 0.8], [0.9, 0.1]]]
    for law in (OneHot(), categorical([[1.0, 0.0]], 2)):
        assert emitted([[1]], p, [1], law) == [(1, 0)]


def test_trees_are_refused():
    tree = Draft(torch.zeros(1, 2).long(), torch.tensor([2]), OneHot(), torch.full((1, 2), -1))
    with pytest.raises(ContractError, match="tree"):
        GreedyRule().verify(tree, Scores(torch.full((1, 3, 2), 0.5)), NoCoins())


@pytest.mark.parametrize(
    "name", ["null", "model", "jacobi-uniform", "jacobi-previous", "coupled", "fixed"]
)
@pytest.mark.parametrize(
    "length", [ConstantLength(3), HeuristicLength(2, 6)], ids=["3", "heuristic"]
)
def test_whole_loop_is_greedy_decoding(name, length):
    target, vocab, limit = Table(4, 30), 4, 12
    # the target itself drafts in "model": some drafts stand, sampled ones often don't
    makers = drafters(vocab, target) | {"fixed": lambda: FixedDrafter([0, 1, 2], OneHot())}
    if name == "fixed" and isinstance(length, HeuristicLength):
        length = ConstantLength(1)  # a fixed draft is three tokens wide
    engine = Engine(
        TableTarget(target), makers[name](), GreedyRule(), length, ProductionCoins([5, 6, 7])
    )
    stats = SpecStats()
    context = run(engine, 3, limit, stats)
    assert outputs(context) == [target.greedy(limit)] * 3
    if name == "model":
        assert 0 < sum(stats.accepted) < sum(stats.drafted)
