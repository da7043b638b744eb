"""The guard of drafts by a clock that the test sets: what it loses at most, and what it keeps."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from machines import SHAPES, Machine, known_plain
from toys import EXACT, Table, TableModel, TableTarget, distance, drafters, whole_loop

from benchmarks.lengths.rounds import RoundCost
from mmspec.draft.guarded import GuardedDrafter
from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.draft import Context
from mmspec.engine.length import guard as guards
from mmspec.engine.length.constant import ConstantLength, HeuristicLength
from mmspec.engine.length.goodput import Experience, GoodputLength
from mmspec.engine.length.guard import Guard, GuardedLength
from mmspec.engine.length.ledger import OWED, SHARE, Gain, Ledger, PlainSeconds

BATCHES = (1, 2, 5, 32)
CHEAP = SHAPES["image: windows, an idle card"]


@pytest.mark.parametrize("stands", [0.85, 0.3, 0.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_lost_against_plain_decoding_is_bounded(shape, stands, monkeypatch):
    """S ≤ P + SHARE · S + 2 · owed · T + R for every octave of rows that run, after each call."""
    grows = "windows" in shape
    for rows in BATCHES:
        machine = Machine(SHAPES[shape], monkeypatch, (stands,))
        ledger = Ledger(2 * OWED if grows else OWED)
        plain, lengths = 0.0, [96] * rows
        for _ in range(4):
            machine.runs(ledger, 8, lengths, grows=grows)
            plain += machine.plain(lengths)
            first = machine.cost.seconds(rows, 1)  # of all that drafts, and not in the account
            octaves = [n for n in (1, 2, 4, 8, 16, 32) if n <= rows]
            owed = 2 * ledger.owed
            debt = sum(owed * machine.cost.seconds(n, 0) + machine.longest for n in octaves)
            assert machine.now <= plain + SHARE * machine.now + debt + first + 1


@pytest.mark.parametrize("noise", [0.05, 0.1])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_noisy_clock_costs_little_more(shape, noise, monkeypatch):
    for rows in (1, 24):
        for stands in (0.85, 0.3):
            machine = Machine(SHAPES[shape], monkeypatch, (stands,), noise, seed=rows)
            grows, lengths = "windows" in shape, [256] * rows
            ledger = Ledger(2 * OWED if grows else OWED)
            machine.runs(ledger, 8, lengths, grows=grows)
            started = machine.now
            for _ in range(3):
                machine.runs(ledger, 8, lengths, grows=grows)
            mean = math.exp(noise**2 / 2)  # of a round's factor
            assert 3 * mean * machine.plain(lengths) / (machine.now - started) > 0.965


def test_what_pays_is_kept(monkeypatch):
    """Most of what the same drafts bring without a guard, in the first call as well."""
    for rows in (1, 8, 32):
        machine = Machine(CHEAP, monkeypatch)
        machine.runs(Ledger(), 8, [256] * rows)
        free, stands_still = Machine(CHEAP, monkeypatch), Ledger()
        monkeypatch.setattr(guards, "now", lambda: 0.0)
        free.runs(stands_still, 8, [256] * rows)
        assert machine.now < free.now / 0.8


def test_a_full_batch_is_plain_and_its_last_rows_draft(monkeypatch):
    """Two long answers among thirty short ones: as the rows end, drafts begin to pay."""
    shape, lengths = (1.0, 0.06, 0.0, 0.0), [32] * 30 + [256] * 2
    machine = Machine(shape, monkeypatch, (0.7,))
    ledger = Ledger()
    machine.runs(ledger, 8, lengths)
    started = machine.now
    drafted, rounds = machine.runs(ledger, 8, lengths)
    assert machine.now - started < 0.8 * machine.plain(lengths)
    assert ledger.rounds[0, 5].rate < 1 < ledger.rounds[0, 1].rate
    assert drafted < rounds - 20  # the first 32 tokens or so are written plainly


def test_where_the_clock_stands_still_all_rounds_draft():
    ledger = Ledger()
    guard = Guard(ledger, 0)
    policy = GuardedLength(ConstantLength(4), guard)
    policy.start(2)
    assert [policy.budget() for _ in range(30)] == [[4, 4]] * 30
    assert ledger == Ledger()


def test_a_plain_call_only_times_its_rounds(monkeypatch):
    machine, ledger = Machine(CHEAP, monkeypatch), Ledger()
    assert machine.runs(ledger, 8, [32], arm=None) == (0, 32)
    assert ledger.plain.at(1) == pytest.approx(machine.cost.seconds(1, 0))
    drafted, rounds = machine.runs(ledger, 8, [32])
    assert drafted >= rounds - 1  # nothing is left to be timed; one token more has room for none


def test_tries_become_rare_within_a_call(monkeypatch):
    machine, ledger = Machine((1.0, 0.0, 0.5, 0.0), monkeypatch, (0.0,)), Ledger()
    guard = Guard(ledger, 0)
    began = []
    for number in range(4000):
        machine.now += 0.001
        before = guard._on
        drafts = guard.drafts(1)
        began += [number] if drafts and not before else []
        machine.now += 1.05 if drafts else 1.0
        guard.told(1, 1.0, 1.05 if drafts else 1.0, 8 if drafts else 0)
    gaps = [after - before for before, after in pairwise(began)]
    assert len(began) > 3
    assert all(later > 1.5 * sooner for sooner, later in pairwise(gaps))


def test_drafts_that_begin_to_pay_are_found(monkeypatch):
    machine, ledger = Machine(CHEAP, monkeypatch, (0.0,)), Ledger()
    machine.runs(ledger, 8, [512])
    machine.stands = (0.9,)
    drafted, rounds = machine.runs(ledger, 8, [512])
    assert drafted > 0.5 * rounds


def test_a_machine_that_slows_down_does_not_end_drafts_that_pay(monkeypatch):
    machine, ledger = Machine(CHEAP, monkeypatch), Ledger()
    machine.runs(ledger, 8, [256] * 2)
    machine.cost = RoundCost(*(2 * cost for cost in CHEAP))
    for _ in range(3):
        drafted, rounds = machine.runs(ledger, 8, [256] * 2)
    assert drafted > 0.9 * rounds


def test_one_slow_round_is_not_believed(monkeypatch):
    guard = Guard(Ledger(), 0)
    for number in range(40):
        drafts = guard.drafts(1) if number else not guard.drafts(1)
        guard._stands = False
        guard.told(1, 4.0 if drafts else 1.0, 100.0 if number == 30 else 1.0, 4 if drafts else 0)
    assert guard._on


def test_half_of_the_rows_may_draft_at_once_where_that_is_known_to_pay():
    ledger = known_plain([2, 4])
    ledger.rounds |= {(0, 1): Gain(2.0, 1.0), (0, 2): Gain(0.5, 1.0)}
    guard = Guard(ledger, 0)
    asked = []
    for rows in (4, 3, 2):
        asked.append(guard.drafts(rows))
        guard._stands = False
    assert asked[1:] == [False, True]


@pytest.mark.parametrize(("gain", "rounds"), [(1.2, 64), (2.0, 256)])
def test_plain_rounds_are_timed_again(gain, rounds):
    ledger = known_plain([1])
    ledger.rounds[0, 0] = Gain(gain, 1.0)
    guard = Guard(ledger, 0)
    guard.drafts(1)
    guard._stands = False
    asked = []
    for since in (rounds - 1, rounds):
        ledger.since[0] = since
        asked.append(guard.drafts(1))
    assert asked == [True, False]


def worth_of(**now) -> float:
    """Worth of a round of two rows in which the first emits 4 of 10 tokens; `now`: of a context.

    Plain rounds of both take 1.5 seconds, and those of one alone 1.
    """
    ledger = known_plain([1])
    for _ in range(2):
        ledger.plain.learn(2, 1.5)
    policy = GuardedLength(ConstantLength(4), Guard(ledger, 0), prompted=False)
    policy.start(2)
    policy.budget()
    context = replace(Context.empty(2, 10), emitted=[4, 0], base=[4, 0], **now)
    policy._started -= 1.0
    policy.observe(context, None, None)
    return policy.guard.worth


@pytest.mark.parametrize("seated", [False, True])
def test_rows_that_are_ahead_end_sooner_unless_others_take_them(seated):
    # of 10 rounds of both, 6 are left and 4 of one alone; or both wrote 2 tokens in the mean
    wanted = 2 * 1.5 if seated else 4 * (1.5 - 1.0)
    assert worth_of(samples=[0, 1] if seated else None) == pytest.approx(wanted)


# --- the account ----------------------------------------------------------------------------------


def test_plain_seconds_between_and_beyond_what_was_seen():
    plain = PlainSeconds()
    assert plain.at(3) == 0.0
    assert not plain.knows(3)
    for _ in range(2):
        plain.learn(8, 4.0)
    assert plain.knows(6)
    assert not plain.knows(4)
    assert plain.at(4) == pytest.approx(3.0)  # half of it grows with the rows
    assert plain.at(16) == pytest.approx(6.0)
    for _ in range(2):
        plain.learn(4, 3.6)
    assert plain.at(6) == pytest.approx(3.8)
    assert plain.at(2) == pytest.approx(3.4)
    assert plain.at(1) == pytest.approx(3.3)
    assert plain.at(16) == pytest.approx(4.8)
    plain.learn(4, 1.0)  # less than in proportion, which can't be for long
    assert plain.at(2) >= plain.at(4) / 2


@pytest.mark.parametrize("at_once", [None, 3, 1])
def test_plain_seconds_of_rows_that_end_at_different_times(at_once):
    plain = PlainSeconds()
    for rows in range(1, 6):
        plain.learn(rows, 1 + rows / 10)
    tokens = [5, 2, 9, 2, 7]
    ends = [0] * (at_once or 5)
    for count in tokens:  # round by round, with those who wait
        ends[ends.index(min(ends))] += count
    wanted = sum(1 + sum(end > step for end in ends) / 10 for step in range(max(ends)))
    assert plain.of(tokens, at_once) == pytest.approx(wanted)


def test_more_rows_tell_what_pays_and_fewer_what_does_not():
    ledger = Ledger()
    ledger.rounds[0, 3] = Gain(2.0, 1.0)
    assert ledger.gain(ledger.rounds, 0, 8).rate == 2.0
    assert ledger.gain(ledger.rounds, 0, 2).rate == 2.0
    assert ledger.gain(ledger.rounds, 0, 32) is None
    assert ledger.gain(ledger.rounds, 1, 2) is None
    ledger.rounds[0, 3] = Gain(0.5, 1.0)
    assert ledger.gain(ledger.rounds, 0, 2) is None
    assert ledger.gain(ledger.rounds, 0, 32).rate == 0.5


def test_old_merits_do_not_pay_for_new_losses():
    ledger = Ledger()
    for _ in range(2):
        ledger.plain.learn(1, 1.0)
    ledger.earn(1, 1000.0, saved=500.0)
    assert ledger.balances == {0: OWED}
    ledger.earn(1, 0.0, saved=-2 * OWED - 0.1)
    assert not ledger.may_draft(1)
    assert ledger.may_draft(8)  # another load's


def test_rows_that_end_apart_save_less_than_rounds_told():
    ledger = known_plain([1])
    ledger.earn(1, 0.0, saved=2.0)
    ledger.learn_call(0, 1, worth=5.0, spent=6.0, before=0.5)
    assert ledger.balances[0] == pytest.approx(0.5 + 6 * SHARE - 1)
    ledger.learn_call(0, 1, worth=5.0, spent=1.0, before=0.5)  # rounds knew no more
    assert ledger.balances[0] == pytest.approx(0.5 + 6 * SHARE - 1)


def test_merits_of_one_text_are_soon_used_up_by_another(monkeypatch):
    """Drafts that stood whole for long are given up within a dozen rounds where none stands."""
    machine = Machine(CHEAP, monkeypatch, (1.0,))
    ledger = Ledger()
    machine.runs(ledger, 8, [256])
    assert ledger.gain(ledger.rounds, 0, 1).rate > 2
    guard, seconds = Guard(ledger, 0), 1.4 * ledger.plain.at(1)
    monkeypatch.setattr(guards, "now", partial(next, itertools.count()))
    rounds = 0
    while guard.drafts(1):
        guard.told(1, 1, seconds, 8)
        rounds += 1
        assert rounds < 16
    assert rounds > 2


def test_a_row_alone_is_judged_by_its_own_rounds():
    """Not by what plain rounds take at the end of its call."""
    ledger = known_plain([1])
    guard = Guard(ledger, 0)
    guard.worth = guard.spent = 7.0
    guard.close(1, [9])
    assert guard.worth == 7.0
    guard = Guard(ledger, 0)
    guard.worth = guard.spent = 7.0
    guard.close(2, [9, 9])
    assert guard.worth == pytest.approx(ledger.plain.of([9, 9]))


def test_reading_a_prompt_for_a_drafter_is_charged(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(guards, "now", lambda: float(next(clock)))
    ledger = Ledger(begun={0})
    drafter = GuardedDrafter(drafters(2, Table(2, 8))["model"](), 2, 4)
    drafter.guard = Guard(ledger, 0)
    drafter.start(Context.empty(3, 4))
    assert drafter.guard.spent == 1.0
    assert not ledger.balances  # the call's own drafts are paid for by now
    drafter.guard.leave(3)  # it broke off
    drafter.guard.leave(3)
    assert ledger.balances == {2: SHARE - 1.0}
    ledger = Ledger()
    drafter.guard = Guard(ledger, 0)
    drafter.start(Context.empty(3, 4))
    drafter.guard.leave(3)
    assert not ledger.balances  # the first time it is slow


def test_reading_is_charged_once_and_refuses_no_draft_of_its_own_call(monkeypatch):
    """Two further calls of the same samples: one whose drafter reads its prompt, and one's none."""
    balances, rounds = [], []
    for seconds in (0.0, 8.0):  # more than may be owed
        machine, ledger = Machine(CHEAP, monkeypatch), Ledger()
        machine.runs(ledger, 8, [96])
        ledger.balances[0] = 0.0
        guard = Guard(ledger, 0)
        with guard.reading(1, lambda: None):
            machine.now += seconds
        rounds.append(machine.plays(guard, 8, [96]))
        guard.close(1, [96])
        guard.leave(1)
        balances.append(ledger.balances[0])
    assert rounds[0] == rounds[1]
    saved = guard.worth - guard.spent + SHARE * guard.spent
    assert balances[1] == pytest.approx(min(balances[0], saved))


def test_a_round_without_room_for_a_draft_says_nothing_of_drafts():
    ledger = known_plain([1])
    policy = GuardedLength(ConstantLength(4), Guard(ledger, 0), prompted=False)
    policy.start(1)
    context = Context.empty(1, 3)
    for base, emitted in ((2, 2), (3, 1)):
        policy.budget()
        policy.guard._stands = True
        context.emitted, context.base = [emitted], [base]
        policy._started -= 1.0
        policy.observe(context, None, None)
    assert ledger.since == {0: 0}  # the second was a plain round, which has been timed
    assert ledger.plain.known[1][1] == 3


def test_a_row_that_was_ended_from_outside_was_not_in_the_next_round():
    assert worth_of(finished=[False, True]) == pytest.approx(4 * 1.0)  # of one row alone


# --- exactness ------------------------------------------------------------------------------------


class Clocked(GuardedLength):
    """Of enumerated runs every one is the first, on a clock that goes by what rounds do."""

    time = 0.0

    def __init__(self, inner, cost, trial=1) -> None:
        self.inner, self.cost, self.trial = inner, cost, trial
        self.seen = set()
        super().__init__(inner(), Guard(Ledger(), 0))

    def start(self, rows: int) -> None:
        self.length, self.guard = self.inner(), Guard(known_plain([1]), 0, trial=self.trial)
        self.time += 1.0
        super().start(rows)

    def budget(self) -> list[int]:
        told = super().budget()
        self.seen.add(max(told))
        return told

    def observe(self, context, draft, verdict) -> None:
        self.time += self.cost[draft.nodes]
        super().observe(context, draft, verdict)


INNER = {
    "constant": lambda: ConstantLength(2),
    "heuristic": lambda: HeuristicLength(1, 2),
    "goodput": lambda: GoodputLength(Experience([1, 1.3, 1.6]), news=0),
}


@pytest.mark.parametrize("name", ["model", "jacobi-previous", "jacobi-uniform", "coupled"])
@pytest.mark.parametrize("inner", INNER)
def test_joint_law(inner, name, monkeypatch):
    """Drafts are given up by what stood, and taken up again, and the law stays the target's."""
    target, drafter = Table(2, 7), drafters(2, Table(2, 8))[name]
    monkeypatch.setattr(guards, "_PATIENCE", 0)
    policy = Clocked(INNER[inner], [1.0, 1.4, 1.6])
    monkeypatch.setattr(guards, "now", lambda: policy.time)
    law = whole_loop(5, TableTarget(target), drafter, length=policy, at_once=1)
    assert distance(law, target.joint(5)) < EXACT
    assert {0, 2} <= policy.seen


def test_joint_law_of_trees(monkeypatch):
    """A tree is cut to its first level as a try begins, and left out when it has fallen."""
    target, model = Table(2, 7), Table(2, 8)
    for name in ("_PATIENCE", "_TRIAL"):
        monkeypatch.setattr(guards, name, 0)
    monkeypatch.setattr(guards, "_RAMP", 1)
    policy = Clocked(lambda: ConstantLength(2), [1.0, 1.2, 1.4, 2.0, 2.5], trial=None)
    monkeypatch.setattr(guards, "now", lambda: policy.time)
    law = whole_loop(
        5,
        TableTarget(target),
        lambda: TreeDrafter(TableModel(model), (2, 1)),
        rule=RecursiveRule(),
        length=policy,
        at_once=1,
    )
    assert distance(law, target.joint(5)) < EXACT
    assert policy.seen == {0, 1, 2}


def test_a_seated_row_runs_again():
    policy = GuardedLength(ConstantLength(2), Guard(Ledger(), 0))
    policy.start(2)
    policy._over = [True, True]
    policy.seat(Context.empty(2, 4), [1])
    assert policy._over == [True, False]
    assert policy.wraps == (policy.length,)
    assert torch.equal(torch.tensor(policy.budget()), torch.tensor([2, 2]))
