"""Trees of trigrams: exact, chosen as a slow search does, and learnt from the text alone."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial

import pytest
import texts
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import EXACT, Table, TableTarget, context_at, distance, outputs, whole_loop

import mmspec
from mmspec.draft.tree import trigrams as trigrams_file
from mmspec.draft.tree.trigram_tree import TrigramDrafter
from mmspec.draft.tree.trigrams import (
    TURNS,
    LivingTrigrams,
    Trigrams,
    best_first,
    monte_carlo,
    pair,
)
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats

COINS = ProductionCoins([0]).round(0)[0]
TEXTS = st.lists(st.integers(0, 2), max_size=14)


def counted(text: list[int], above: int = 2) -> Trigrams:
    made = Trigrams()
    made.learn(text, 0, above)
    return made


@pytest.mark.parametrize("search", ["best-first", "monte-carlo"])
@pytest.mark.parametrize(("vocab", "limit"), [(2, 5), (3, 4)])
def test_joint_law(search, vocab, limit):
    target = Table(vocab, 7)
    prompt = torch.tensor([[0, 1, 0, 0, 1, 1, 0, 1]])
    drafter = partial(TrigramDrafter, 5, 2, 3, search, prompt=prompt)
    law = whole_loop(limit, TableTarget(target), drafter, rule=RecursiveRule(), at_once=1)
    assert distance(law, target.joint(limit)) < EXACT


@settings(max_examples=100, deadline=None, derandomize=True)
@given(TEXTS, st.integers(2, 4))
def test_counts_are_those_of_the_text(text, above):
    found = counted(text, above)
    places = range(len(text))
    slow = Counter((pair(text, n, above), text[n]) for n in places)
    for key in {pair(text, n, above) for n in places}:
        behind = {token: n for (one, token), n in slow.items() if one == key}
        last = {
            token: max(n for n in places if pair(text, n, above) == key and text[n] == token)
            for token in behind
        }
        expected = sorted(behind, key=lambda token: (-behind[token], -last[token]))
        shares = [(token, behind[token] / sum(behind.values())) for token in expected]
        assert found.likely(key, 9) == shares
        assert found.likely(key, 1) == shares[:1]
    assert found.likely((7, 7), 3) == []


def slow_paths(trigrams, text, above, depth, width) -> dict[tuple[int, ...], float]:
    """All paths that the counts know of, with their shares."""
    known = {(): 1.0}
    for path in itertools.chain.from_iterable(
        itertools.product(range(3), repeat=n) for n in range(1, depth + 1)
    ):
        if path[:-1] in known:
            so_far = [*text, *path[:-1]]
            shares = dict(trigrams.likely(pair(so_far, len(so_far), above), width))
            if path[-1] in shares:
                known[path] = known[path[:-1]] * shares[path[-1]]
    del known[()]
    return known


def drafted_paths(tree: list[tuple[int, int]]) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for parent, token in tree:
        assert parent < len(paths)  # behind its parent
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert len({*paths}) == len(paths)
    return paths


@settings(max_examples=100, deadline=None, derandomize=True)
@given(TEXTS, st.integers(1, 12), st.integers(0, 3), st.integers(1, 3), st.integers(2, 4))
def test_best_first_takes_the_likeliest_paths(text, nodes, depth, width, above):
    trigrams = counted(text, above)
    tree = best_first(trigrams.likely, text[-above:], above, nodes, depth, width)
    known = slow_paths(trigrams, text, above, depth, width)
    paths = drafted_paths(tree)
    best = sorted(known.values(), reverse=True)[:nodes]
    assert [known[path] for path in paths] == pytest.approx(best)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(TEXTS, st.integers(1, 12), st.integers(0, 3), st.integers(1, 3))
def test_a_search_draws_paths_that_the_counts_know(text, nodes, depth, width):
    trigrams = counted(text)
    tree = monte_carlo(trigrams.likely, text[-2:], 2, nodes, depth, width)
    known = slow_paths(trigrams, text, 2, depth, width)
    paths = drafted_paths(tree)
    assert {*paths} <= {*known}
    assert len(paths) == min(nodes, len(known))  # so few are all visited


def test_a_search_goes_where_shares_are_large():
    """A path of small shares loses its place to others, whatever order they were counted in."""
    text = [0, 0, *[1, 0, 0] * 6, 2, 0, 0]
    trigrams = counted(text)
    assert dict(trigrams.likely((0, 0), 3)) == {1: 6 / 7, 2: 1 / 7}
    assert monte_carlo(trigrams.likely, [0, 0], 2, 1, 3, 3) == [(-1, 1)]
    assert drafted_paths(monte_carlo(trigrams.likely, [0, 0], 2, 3, 3, 3))[1] == (1, 0)
    assert TURNS == 150


def test_a_draft_is_of_the_prompt_and_of_what_was_written():
    drafter = TrigramDrafter(9, 3, 3, prompt=torch.tensor([[-1, 5, 6, 7], [5, 6, 8, 6]]))
    context = context_at((), 2, 10)
    drafter.start(context)
    draft = drafter.propose(context, [3, 3], COINS)
    assert draft.lengths.tolist() == [0, 0]  # behind (6, 7) and (8, 6) nothing was seen
    context = context_at((5, 6), 2, 10)
    drafter.texts.follow(context)
    draft = drafter.propose(context, [3, 1], COINS)
    assert draft.lengths.tolist() == [3, 1]
    assert draft.tokens[0].tolist() == [7, 5, 6]
    assert draft.parents[0].tolist() == [-1, 0, 1]
    assert draft.tokens[1, 0] == 8


@pytest.mark.parametrize(("row", "drafted"), [(3, [5]), (1, [])])
def test_pictures_look_up_and_to_the_left(row, drafted):
    """Place 8 is below a 2 and behind a 4, as place 4 was; as a text it is behind 9 and 4."""
    drafter = TrigramDrafter(4, 1, 2, row=row)
    drafter.start(context_at((), 1, 9))
    context = context_at((1, 2, 3, 4, 5, 2, 9, 4), 1, 9)
    drafter.texts.follow(context)
    draft = drafter.propose(context, [1], COINS)
    assert draft.tokens[0, : draft.lengths[0]].tolist() == drafted


@pytest.mark.parametrize("search", ["best-first", "monte-carlo"])
def test_rows_do_not_know_of_each_other(search):
    target = TableTarget(Table(4, 3))

    def engine(seeds):
        drafter = TrigramDrafter(6, 3, 3, search)
        return Engine(target, drafter, RecursiveRule(), ConstantLength(3), ProductionCoins(seeds))

    stats = SpecStats()
    together = outputs(run(engine(list(range(6))), 6, 24, stats))
    assert sum(stats.accepted) > 0
    for row in range(6):
        assert outputs(run(engine([row]), 1, 24, SpecStats())) == [together[row]]


def test_what_lives_on_is_what_rows_have_learnt():
    table = LivingTrigrams()
    table.begin()
    first, second = table.row(), table.row()
    first.learn([1, 2, 3], 0, 2)
    second.learn([1, 2, 4], 0, 2)
    assert first.likely((1, 2), 5) == [(3, 1.0)]
    assert table.row().likely((1, 2), 5) == []  # this generation's rows learn apart
    table.begin()
    row = table.row()
    assert row.likely((1, 2), 5) == [(4, 0.5), (3, 0.5)]
    row.learn([1, 2, 3], 0, 2)
    assert row.likely((1, 2), 5) == [(3, 2 / 3), (4, 1 / 3)]


def test_what_lives_on_is_bounded(monkeypatch):
    """Pairs that were seen last stay, whatever was seen first."""
    monkeypatch.setattr(trigrams_file, "MOST_PAIRS", 3)
    table = LivingTrigrams()
    for text in ([1, 2, 3], [4, 5, 6], [1, 2, 3]):
        table.begin()
        table.row().learn(text, 2, 2)
    for pair_, token in (((7, 8), 9), ((8, 8), 9)):
        table.begin()
        table.row().counts[pair_] = {token: 1}
    table.begin()
    row = table.row()
    assert row.likely((4, 5), 1) == []
    assert row.likely((1, 2), 1) == [(3, 1.0)]
    assert len(table._whole.counts) == 3


def test_the_end_of_a_text_is_counted():
    """A round more than was drafted for."""
    table, target = LivingTrigrams(), TableTarget(Table(4, 3))
    drafter = TrigramDrafter(6, 3, 3, table=table)
    engine = Engine(target, drafter, RecursiveRule(), ConstantLength(3), ProductionCoins([1]))
    (text,) = outputs(run(engine, 1, 12, SpecStats()))
    assert drafter.texts.texts == [list(text)]
    table.begin()
    assert sum(sum(found.values()) for found in table._whole.counts.values()) == 12


@pytest.mark.parametrize("search", ["best-first", "monte-carlo"])
def test_text_is_the_models_own(search):
    words = texts.tokenizer()
    pipe = mmspec.TextPipeline(texts.model(words), words)
    prompts = ["the dog and the dog saw the cat. the dog and", "x"]
    plain = pipe(prompts, max_new_tokens=24).text
    pipe.enable_speculation(f"aded[tree_search={search},table_lives=true]")
    for _ in range(2):
        out = pipe(prompts, max_new_tokens=24)
        assert out.text == plain
        assert out.stats.fault is None
    assert sum(out.stats.accepted) > 0
    calls = out.stats.calls
    pipe.enable_speculation(f"aded[tree_search={search}]")
    assert pipe(prompts, max_new_tokens=24).text == plain
    assert sum(pipe(prompts, max_new_tokens=24).stats.calls) > sum(calls)  # it learns no more
