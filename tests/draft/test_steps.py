"""Steps that a draft model writes, row by row: what is drawn, behind what, and when it is over.

Whether a text has the right law is asked in `tests/models/test_step_target.py`.
"""

from __future__ import annotations

import pytest
import torch
from toys import Table, TableModel

from mmspec.draft.steps import StepDrafter
from mmspec.engine.accept.routing import RandomRoutingRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Context
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.models.step_target import StepTarget

VOCAB, END, MOST = 4, 0, 5


def ends(tokens):
    return tokens[:, -1] == END


def code(text) -> list[float]:
    """Two numbers that tell a text from all others."""
    return [float(sum((token + 1) * 5**n for n, token in enumerate(text))), float(len(text))]


class Model(TableModel):
    """A table whose calls leave a code of the text behind, and count what they read.

    Behind some texts its law is none.
    """

    watched = True

    def __init__(self, table, bad=lambda text: False):
        super().__init__(table)
        self.bad, self.reads, self.seats = bad, [], []

    def start(self, rows):
        super().start(rows)
        self.rows = rows

    def seat(self, context, rows):
        self.seats.append((context, rows))
        for row in rows:
            self.seen[row] = []

    def leave(self, finished):
        """A table runs every row."""

    def extend(self, tokens, start, draft=None):
        laws = super().extend(tokens, start, draft)
        self.reads.append(tokens.shape[1])
        states = []
        for row, (first, seen) in enumerate(zip(start, self.seen, strict=True)):
            texts = [tuple(seen[1 : end + 1]) for end in range(first + 1, len(seen))]
            states.append([code(text) for text in texts])
            for place, text in enumerate(texts):
                if self.bad(text):
                    laws[row, place] = torch.nan
        # rows without a condition stand behind the others
        self.hidden = torch.tensor(states + states, dtype=torch.float64)
        return laws


class Watched(StepDrafter):
    """Compares every draft with the text that it stands behind."""

    def __init__(self, model):
        super().__init__(model, ends)
        self.waits = self.faults = self.steps = 0

    def propose(self, context, budget, coins):
        draft = super().propose(context, budget, coins)
        rows = zip(draft.tokens.tolist(), draft.lengths.tolist(), strict=True)
        assert draft.tokens.shape[1] == int(draft.lengths.max())
        for row, (tokens, length) in enumerate(rows):
            text = context.tokens[row, : context.base[row]].tolist()
            step = tokens[:length]
            behind = [(*text, *step[:n]) for n in range(length)]
            assert END not in step[:-1]
            assert draft.pending[row] == (budget[row] > 0 and not length)
            assert draft.states[row, :length].tolist() == [code(text) for text in behind]
            wrong = any(self.model.bad(text) for text in behind)
            assert bool(draft.faulty[row]) == wrong
            if length:
                assert step[-1] == END or length == budget[row]
            self.waits += draft.pending[row]
            self.faults += wrong
            self.steps += length > 0
        return draft


@pytest.mark.parametrize("seed", range(3))
def test_states_and_faults_are_those_of_each_token(seed):
    """Of ragged steps, whose rows wait for others; some of the laws are none."""
    model = Model(Table(VOCAB, seed + 50), lambda text: len(text) % 7 == 3)
    drafter, target = Watched(model), Model(Table(VOCAB, seed))
    coins = ProductionCoins([seed, 9, 4])
    parts = StepTarget(target, ends, MOST), drafter, RandomRoutingRule(0.5), ConstantLength(MOST)
    for _ in range(2):
        run(Engine(*parts, coins), 3, 40, SpecStats())
    assert drafter.waits > 10
    assert drafter.steps > drafter.faults > 3


def test_another_generation_may_have_other_rows():
    """What rows before have left is none of theirs."""
    model = Model(Table(VOCAB, 51))
    drafter, target = Watched(model), Model(Table(VOCAB, 1))
    for rows in (1, 4, 2):
        coins = ProductionCoins([*range(rows)])
        parts = StepTarget(target, ends, MOST), drafter, RandomRoutingRule(0.5)
        run(Engine(*parts, ConstantLength(MOST), coins), rows, 20, SpecStats())


class Unwatched(TableModel):
    """Its hidden states are of nobody's asking."""

    hidden = torch.zeros(1, 1, 2)


@pytest.mark.parametrize("watched", [None, False])
def test_without_being_watched_a_model_leaves_no_states(watched):
    model = Unwatched(Table(VOCAB, 1))
    if watched is not None:
        model.watched = watched
    drafter, context = StepDrafter(model, ends), Context.empty(2, 20)
    drafter.start(context)
    draft = drafter.propose(context, [3, 3], ProductionCoins([1, 2]).round(0)[0])
    assert draft.states is None


class Endless:
    """Steps that never end by themselves."""

    def __call__(self, tokens):
        return torch.zeros(len(tokens), dtype=torch.bool)


class Begun:
    """A drafter at the start of a text, round by round."""

    def __init__(self, rows, model=None):
        self.model = model or Model(Table(VOCAB, 3))
        self.drafter, self.context = StepDrafter(self.model, Endless()), Context.empty(rows, 40)
        self.context.accepted, self.context.emitted = [0] * rows, [0] * rows
        self.coins = ProductionCoins([*range(rows)])
        self.drafter.start(self.context)

    def propose(self, *budget):
        coins = self.coins.round(self.context.round)[0]
        self.context.round += 1
        return self.drafter.propose(self.context, [*budget], coins)

    def commit(self, row, tokens, kept, draft):
        """Let a row's output grow by tokens, of which `kept` were drafted."""
        context, base = self.context, self.context.base[row]
        context.tokens[row, base : base + len(tokens)] = torch.tensor(tokens)
        context.base[row] = base + len(tokens)
        context.lengths = torch.tensor(context.base)
        context.accepted[row], context.emitted[row] = kept, len(tokens)
        self.drafter.observe(context, draft, None, None)

    @property
    def counts(self):
        return self.drafter._steps.counts


def test_a_step_that_waits_is_proposed_again_and_others_go_on_by_a_token():
    text = Begun(2)
    first = text.propose(3, 5)
    assert first.lengths.tolist() == [3, 0]
    assert first.pending == [False, True]
    calls = len(text.model.reads)
    for lengths in ([3, 0], [3, 5], [3, 5]):
        again = text.propose(3, 5)
        assert again.lengths.tolist() == lengths
        assert torch.equal(again.tokens[0, :3], first.tokens[0])
        assert torch.equal(again.states[0, :3], first.states[0])
    assert len(text.model.reads) == calls + 2
    assert text.propose(2, 5).lengths.tolist() == [2, 5]  # the row may say less by now
    assert text.propose(0, 5).pending == [False, False]
    assert text.counts == [3, 5]


def test_a_row_that_may_say_nothing_drafts_nothing():
    text = Begun(2)
    draft = text.propose(2, 0)
    assert draft.lengths.tolist() == [2, 0]
    assert draft.pending == [False, False]
    assert text.counts == [2, 0]
    text.commit(0, draft.tokens[0].tolist(), 2, draft)
    draft = text.propose(0, 1)  # and later as much as it may
    assert draft.lengths.tolist() == [0, 1]
    assert text.counts == [0, 1]
    text = Begun(2)
    assert text.propose(3, 1).pending == [True, False]


@pytest.mark.parametrize("kept", [3, 0])
def test_a_new_step_reads_what_the_last_one_has_left_unread(kept):
    """Behind a step that stood its last token alone, behind one that fell what stands there.

    A row whose step goes on meanwhile reads nothing twice.
    """
    text = Begun(2)
    draft = text.propose(3, 6)
    text.commit(0, draft.tokens[0].tolist() if kept else [1, 2], kept, draft)
    assert text.counts == [0, 3]
    text.model.reads.clear()
    text.propose(4, 6)
    assert text.model.reads == [1 if kept else 2, 1, 1]
    first = text.context.base[0]
    assert text.model.seen[0][1 : 1 + first] == text.context.tokens[0, :first].tolist()


def test_a_sample_that_takes_a_row_begins_a_step_of_its_own():
    """What the row had read is forgotten; its neighbour's step waits as it is."""
    text = Begun(2)
    draft = text.propose(2, 6)
    text.commit(0, draft.tokens[0].tolist(), 2, draft)
    before = text.propose(5, 6)
    assert text.counts == [4, 6]
    text.context.seat([0], [2])
    text.drafter.seat(text.context, [0])
    assert text.model.seats == [(text.context, [0])]
    assert text.counts == [0, 6]
    text.model.reads.clear()
    draft = text.propose(5, 6)
    assert text.model.reads == [1]  # what stands in front of a text
    assert text.counts == [1, 6]
    assert torch.equal(draft.tokens[1], before.tokens[1])
    assert text.drafter._states[0, 0].tolist() == code(())


def test_a_sample_whose_text_the_target_begins_is_read_from_its_prefix_on():
    text = Begun(2)
    draft = text.propose(2, 6)
    text.commit(0, draft.tokens[0].tolist(), 2, draft)
    text.propose(5, 6)
    text.context.seat([0], [2])
    text.drafter.seat(text.context, [0])
    draft = text.propose(0, 6)
    text.commit(0, [1, 2, 1], 0, draft)
    text.model.reads.clear()
    text.propose(4, 6)
    assert text.model.reads == [4]
    assert text.model.seen[0][1:] == [1, 2, 1]


def test_states_of_rows_that_read_less_than_others_are_their_own():
    """One begins its text, while the other reads what the target has written in a step's place."""
    text = Begun(2)
    draft = text.propose(6, 3)
    text.commit(1, [1, 2, 1], 0, draft)
    text.context.seat([0], [2])
    text.context.emitted = [0, 0]
    text.drafter.seat(text.context, [0])
    text.model.reads.clear()
    draft = text.propose(4, 4)
    assert text.model.reads[0] == 3
    for row, before in enumerate(((), (1, 2, 1))):
        step = draft.tokens[row].tolist()
        codes = [code((*before, *step[:n])) for n in range(4)]
        assert draft.states[row].tolist() == codes


class Full(Model):
    """No room for what was said, in some rows; their laws tell nothing."""

    full = (True, False)


def test_a_row_without_room_in_the_model_says_nothing():
    """Its step is over at once, with nothing in it; one that has begun ends by itself."""
    model = Full(Table(VOCAB, 3))
    text = Begun(2, model)
    draft = text.propose(4, 4)
    assert draft.lengths.tolist() == [0, 0]
    assert draft.pending == [False, True]
    assert text.counts == [0, 1]
    model.full = (False, True)
    draft = text.propose(4, 4)
    assert text.counts == [0, 2]
    assert text.drafter._steps.over == [True, False]
