"""Runs of draft tokens that are joined: exact, where the published laws are not."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from toys import (
    EXACT,
    Table,
    TableModel,
    TableTarget,
    composed,
    distance,
    outputs,
    whole_loop,
)

from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.joined import JoinedDrafter, nodes_of
from mmspec.draft.runs import LivingRuns, RunCache
from mmspec.draft.translated import TranslatedModel
from mmspec.engine.accept.block import BlockRule
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.length.stopping import SpecDecLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats


class Letters(TableModel):
    """A table over letters, the first of the target's tokens."""

    def __init__(self, table: Table, vocab: int) -> None:
        super().__init__(table)
        self.vocab = vocab

    def extend(self, tokens, start, draft=None):
        laws = super().extend(tokens, start, draft)
        return torch.nn.functional.pad(laws, (0, self.vocab - laws.shape[-1]))


class Words:
    """Letters, and tokens that several letters spell."""

    def __init__(self, letters: int, words: list[tuple[int, ...]]) -> None:
        self.letters, self.words = letters, words
        self.vocab = letters + len(words)

    def spelled(self, token: int) -> tuple[int, ...]:
        return (token,) if token < self.letters else self.words[token - self.letters]

    def run_of(self, token: int) -> tuple[int, ...]:
        return self.spelled(token) if token >= self.letters else ()

    def model(self, table: Table) -> TranslatedModel:
        return TranslatedModel(Letters(table, self.vocab), self.spelled, 64)

    def drafter(self, table: Table, most=9, known=(), **more) -> JoinedDrafter:
        prompt = torch.tensor([[-1, *known]])
        return JoinedDrafter(
            self.model(table), LivingRuns(self.run_of), most, prompt=prompt, **more
        )


AB = Words(2, [(0, 1)])
WORDS = {
    "one": (AB, 9),
    "nested": (Words(2, [(0, 1), (0, 1, 1), (1, 0)]), 9),
    "deep alone": (Words(2, [(0, 0, 1), (1, 1)]), 9),
    "evicted": (Words(2, [(0, 1), (1, 1), (0, 0)]), 1),
    "overlapping": (Words(2, [(0, 1, 0), (1, 1), (1, 0, 0)]), 9),
}


@pytest.mark.parametrize("rule", [TokenRule, BlockRule])
@pytest.mark.parametrize("kind", WORDS)
def test_joint_law_of_the_whole_loop(kind, rule):
    """Runs of the prompt, and those that were seen on the way."""
    words, most = WORDS[kind]
    target = Table(words.vocab, 40)
    for known in ((), range(words.letters, words.vocab)):
        made = partial(words.drafter, Table(words.letters, 344), most, known)
        law = whole_loop(3, TableTarget(target), made, rule(), ConstantLength(2), at_once=1)
        assert distance(law, target.joint(3)) < EXACT


def random_words(rng, letters: int) -> Words:
    runs = {tuple(rng.integers(letters, size=rng.integers(2, 4)).tolist()) for _ in range(4)}
    return Words(letters, sorted(runs))


@pytest.mark.parametrize("seed", range(12))
def test_rounds_over_random_words_are_exact(seed):
    """Vocabularies, caches of some of their runs, and laws, all drawn at random."""
    rng = np.random.default_rng(seed)
    words = random_words(rng, 2)
    target, own = Table(words.vocab, 70 + seed), Table(2, 90 + seed)
    known = [t for t in range(2, words.vocab) if rng.random() < 0.7]
    for gamma, rule in ((3, TokenRule()), (4, BlockRule())):
        law = composed(3, TableTarget(target), Whole(words, own, known), rule, gamma)
        assert distance(law, target.joint(3)) < EXACT


class Whole:
    """A drafter that is made anew for any number of rows, each with the same prompt."""

    def __init__(self, words: Words, own: Table, known: list[int]) -> None:
        self.words, self.own, self.known = words, own, known

    def start(self, context):
        self.made = self.words.drafter(self.own)
        self.made.prompt = torch.tensor([[-1, *self.known]]).expand(context.rows, -1)
        self.made.start(context)
        self.made.model.start(context.rows)

    def propose(self, context, budget, coins):
        return self.made.propose(context, budget, coins)


@pytest.mark.parametrize("seed", range(30))
def test_laws_are_those_that_nodes_were_drawn_from(seed):
    """Given all nodes before and their laws, and its own law, a node's token has that law."""
    rng = np.random.default_rng(seed)
    letters, depth = int(rng.integers(2, 4)), 4
    words, table = random_words(rng, letters), Table(letters, seed)
    cache = RunCache(9)
    for token in range(letters, words.vocab):
        cache.see(words.run_of(token), token)
    found: dict[tuple, dict[int, float]] = {}
    for drawn in itertools.product(range(letters), repeat=depth):
        laws = torch.tensor([table(drawn[:n]) for n in range(depth)], dtype=torch.float64)
        chance = float(laws[range(depth), list(drawn)].prod())
        laws = torch.nn.functional.pad(laws, (0, len(words.words)))
        if not chance:
            continue
        nodes = nodes_of(list(drawn), laws, cache, depth)
        assert [d for token, *_ in nodes for d in words.spelled(token)] == [*drawn]
        assert [len(words.spelled(token)) for token, *_ in nodes] == [w for *_, w in nodes]
        past: tuple = ()
        for token, law, _ in nodes:
            past = (*past, tuple(round(p, 9) for p in law.tolist()))
            shares = found.setdefault(past, {})
            shares[token] = shares.get(token, 0.0) + chance
            past = (*past, token)
    for past, shares in found.items():
        whole = sum(shares.values())
        law = {token: p for token, p in enumerate(past[-1]) if p}
        assert distance({t: s / whole for t, s in shares.items()}, law) < 1e-7


def published(drawn, laws, cache, planned):
    """Nodes as the paper states their laws: those of the token that was drawn are corrected."""
    nodes, n = [], 0
    while n < len(drawn):
        token, law, width = drawn[n], laws[n].clone(), 1
        if n + 1 < len(drawn):
            for other in cache.next((token,)):
                law[cache.runs[token, other]] = law[token] * laws[n + 1, other]
            joined = cache.runs.get((token, drawn[n + 1]))
            law[token] *= 1 - laws[n + 1, [*cache.next((token,))]].sum()
            if joined is not None:
                token, width = joined, 2
        nodes.append((token, law, width))
        n += width
    return nodes


class Told(Table):
    """A table of laws that are told."""

    def __init__(self, vocab: int, laws) -> None:
        super().__init__(vocab, 0)
        self.laws = laws

    def __call__(self, prefix):
        return self.laws(prefix)


HALVES = {
    # after an "a" by itself the second is always "a", said to be one of two; half of the texts
    # begin so
    "what follows": (
        AB,
        lambda said: [0.5, 0.5] if said else [1.0, 0.0],
        lambda said: [0.5, 0.5, 0.0] if said else [0.5, 0.0, 0.5],
        2,
        0.25,
    ),
    # "a" and "b" always become "ab" and "bb", and the one that was not drawn is said to stay
    "what is left": (
        Words(2, [(0, 1), (1, 1)]),
        lambda said: [0.0, 1.0] if said else [0.5, 0.5],
        lambda said: [0.5, 0.0, 0.5, 0.0],
        1,
        0.5,
    ),
}


@pytest.mark.parametrize("case", HALVES)
def test_the_published_laws_change_the_output(case, monkeypatch):
    words, own, said, limit, off = HALVES[case]
    target = Told(words.vocab, said)
    known = range(2, words.vocab)

    def law():
        whole = Whole(words, Told(2, own), [*known])
        return composed_round(limit, TableTarget(target), whole)

    assert distance(law(), target.joint(limit)) < EXACT
    monkeypatch.setattr("mmspec.draft.joined.nodes_of", published)
    assert distance(law(), target.joint(limit)) == pytest.approx(off, abs=EXACT)


def composed_round(limit, target, drafter):
    """The law of the first `limit` tokens, of drafts of so many draws and one more."""
    whole = composed(limit + 2, target, drafter, TokenRule(), limit + 1)
    law: dict[tuple[int, ...], float] = {}
    for out, p in whole.items():
        law[out[:limit]] = law.get(out[:limit], 0.0) + p
    return law


def says(word: int, vocab: int) -> Told:
    return Told(vocab, lambda said: [float(t == word) for t in range(vocab)])


def letters_in_turn(said):
    return [float(len(said) % 2 == n) for n in range(2)]


@pytest.mark.parametrize("most", [0, 9])
def test_what_is_joined_stands_and_is_read_once(most):
    """The target says "ab" over and over, which the draft model says in two."""
    made = AB.drafter(Told(2, letters_in_turn), most)
    widths = []
    read = made.model.model.extend
    made.model.model.extend = lambda tokens, *rest: (
        widths.append(tokens.shape[1]) or read(tokens, *rest)
    )
    target = TableTarget(says(2, 3))
    engine = Engine(target, made, TokenRule(), ConstantLength(6), ProductionCoins([0]))
    stats = SpecStats()
    assert outputs(run(engine, 1, 9, stats)) == [(2,) * 9]
    seen = made.model.model.seen[0][1:]
    assert seen == ([0, 1] * 9)[: len(seen)]
    if most:
        # nothing was seen in the first round; then three words are drafted, and fewer near the end
        assert stats.calls == [5]
        assert stats.accepted == [4]
        # of every draft's last word the second letter, and the target's own, are read with the next
        assert max(widths) == 4
    else:
        assert stats.calls == [9]
        assert stats.accepted == [0]


def test_without_runs_it_drafts_as_a_draft_model():
    """Of the target's words, or where none is kept: the same tokens by the same coins."""
    target, own = TableTarget(Table(3, 5)), Table(2, 6)

    def found(drafter):
        engine = Engine(
            target, drafter, TokenRule(), ConstantLength(3), ProductionCoins([*range(4)])
        )
        stats = SpecStats()
        return outputs(run(engine, 4, 20, stats)), stats.accepted, stats.calls

    plain = found(ModelDrafter(AB.model(own)))
    assert found(JoinedDrafter(AB.model(own))) == plain
    assert found(JoinedDrafter(AB.model(own), LivingRuns(AB.run_of), 0)) == plain
    assert found(JoinedDrafter(AB.model(own), LivingRuns(AB.run_of), 9)) != plain


def test_rows_do_not_know_of_each_other():
    words = Words(3, [(0, 1), (1, 2, 0), (2, 2)])
    target = TableTarget(Table(words.vocab, 3))

    def engine(seeds):
        made = JoinedDrafter(words.model(Table(3, 8)), LivingRuns(words.run_of))
        length = SpecDecLength(4)
        made.more = length.more
        return Engine(target, made, TokenRule(), length, ProductionCoins(seeds))

    stats = SpecStats()
    together = outputs(run(engine([*range(6)]), 6, 24, stats))
    assert sum(stats.accepted) > 0
    for row in range(6):
        assert outputs(run(engine([row]), 1, 24, SpecStats())) == [together[row]]


def test_the_length_of_specdec_leaves_the_law():
    words = WORDS["nested"][0]
    target = Table(words.vocab, 40)
    length = SpecDecLength(3, 0.5)
    made = partial(words.drafter, Table(2, 344), 9, range(2, words.vocab), more=length.more)
    law = whole_loop(3, TableTarget(target), made, TokenRule(), length, at_once=1)
    assert distance(law, target.joint(3)) < EXACT


def test_the_runs_seen_last_stay():
    cache = RunCache(2)
    for token, spelled in ((5, (0, 1)), (6, (0, 2, 1)), (5, (0, 1)), (7, (3, 1))):
        cache.see(spelled, token)
    assert dict(cache.runs) == {(0, 1): 5, (3, 1): 7}
    assert sorted(cache.next(())) == [0, 3]
    assert [*cache.next((0,))] == [1]
    assert not cache.next((0, 2))
    cache.see((1,), 8)
    cache.see((), 8)
    cache.see((1,) * 9, 8)
    assert len(cache.runs) == 2


def test_what_lives_on_is_what_rows_have_seen():
    table = LivingRuns(AB.run_of)
    table.begin(3)
    first, second = table.row(3), table.row(3)
    first.see((0, 1), 5)
    second.see((0, 2), 6)
    assert not table.row(3).runs  # this generation's rows learn apart
    table.begin(3)
    assert dict(table.row(3).runs) == {(0, 1): 5, (0, 2): 6}
    table.begin(1)
    assert dict(table.row(3).runs) == {(0, 2): 6}
    table.begin(0)
    assert not table.row(3).runs


def test_runs_live_on_if_they_are_to():
    for lives, accepted in ((False, [0]), (True, [1])):
        made = AB.drafter(Told(2, letters_in_turn), table_lives=lives)
        for _ in range(2):
            engine = Engine(
                TableTarget(says(2, 3)), made, TokenRule(), ConstantLength(2), ProductionCoins([0])
            )
            stats = SpecStats()
            run(engine, 1, 3, stats)
        assert stats.accepted == accepted
