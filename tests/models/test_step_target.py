"""Steps of text: the law of what comes out, enumerated, and what the target reads and is asked."""

from __future__ import annotations

import math

import pytest
import torch
from toys import Table, TableModel, close, outputs, whole_loop

from mmspec.draft.steps import StepDrafter
from mmspec.engine.accept.routing import (
    AdvantageRule,
    RandomRoutingRule,
    RewardThresholdRule,
)
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Context, Draft
from mmspec.engine.laws import Opaque, TargetError
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.proof.enumeration import enumerate_law
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.models.step_ends import StepEnds
from mmspec.models.step_target import OracleStepTarget, StepTarget

# two tokens end no step, so that what fell and what stands may begin by different ones
VOCAB, END, EOS, MOST = 4, 0, 2, 2


class Model(TableModel):
    """A table as a network whose samples may be over."""

    def leave(self, finished):
        pass


def ends(tokens: torch.Tensor) -> torch.Tensor:
    return (tokens[:, -1] == END) | (tokens[:, -1] == EOS)


def step_law(table: Table, prefix: tuple[int, ...], room: int) -> dict[tuple[int, ...], float]:
    """The law of a step behind a prefix: up to its end, `MOST` tokens, or the end of the room."""
    law, going = {}, {(): 1.0}
    for n in range(min(MOST, room)):
        longer: dict[tuple[int, ...], float] = {}
        for step, probability in going.items():
            for token, p in enumerate(table((*prefix, *step))):
                if p > 0:
                    more = (*step, token)
                    over = token in (END, EOS) or n + 1 == min(MOST, room)
                    (law if over else longer)[more] = probability * p
        going = longer
    return law


def routed_law(steps, limit: int) -> dict[tuple[int, ...], float]:
    """The law of texts whose every step is drawn from `steps(prefix, room)`."""
    done, going = {}, {(): 1.0}
    while going:
        longer: dict[tuple[int, ...], float] = {}
        for text, probability in going.items():
            for step, p in steps(text, limit - len(text)).items():
                more = (*text, *step)
                over = len(more) == limit or more[-1] == EOS
                into = done if over else longer
                into[more] = into.get(more, 0.0) + probability * p
        going = longer
    return done


def mixed(share: float, small: Table, large: Table):
    def steps(prefix, room):
        law: dict[tuple[int, ...], float] = {}
        for table, weight in ((small, share), (large, 1 - share)):
            for step, p in step_law(table, prefix, room).items():
                law[step] = law.get(step, 0.0) + weight * p
        return law

    return steps


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_texts_have_the_law_of_their_steps(share, seed):
    """Each step is the target's or the drafter's own, behind whatever stands."""
    large, small, limit = Table(VOCAB, seed), Table(VOCAB, seed + 50), 3
    found = whole_loop(
        limit,
        StepTarget(Model(large), ends, MOST),
        lambda: StepDrafter(Model(small), ends),
        RandomRoutingRule(share),
        ConstantLength(MOST),
        EOS,
        at_once=1,
    )
    assert close(found, routed_law(mixed(share, small, large), limit))
    if share in (0.0, 1.0):  # either model's own law of whole texts
        assert close(found, (large, small)[int(share)].joint(limit, EOS))


def scores(context: Context, draft: Draft) -> torch.Tensor:
    """A reward that likes ends."""
    rows = zip(draft.tokens.tolist(), draft.lengths.tolist(), strict=True)
    return torch.tensor([float(row[:n].count(END)) for row, n in rows], dtype=torch.float64)


def test_an_oracle_keeps_the_better_step():
    """Its text's law is that of the better of two steps drawn apart, and it pays for both."""
    large, small, limit = Table(VOCAB, 3), Table(VOCAB, 53), 3

    def better(prefix, room):
        law: dict[tuple[int, ...], float] = {}
        for one, p in step_law(small, prefix, room).items():
            for other, q in step_law(large, prefix, room).items():
                step = other if other.count(END) > one.count(END) else one
                law[step] = law.get(step, 0.0) + p * q
        return law

    def shipped(coins, rows):
        stats = SpecStats()
        target = OracleStepTarget(Model(large), ends, MOST, scores, coins)
        drafter = StepDrafter(Model(small), ends)
        rule, length = AdvantageRule(0.0), ConstantLength(MOST)
        context = run(Engine(target, drafter, rule, length, coins, EOS), rows, limit, stats)
        assert stats.calls[0] >= stats.drafted[0] - stats.accepted[0]
        assert stats.calls[0] > 0
        return outputs(context)

    assert close(enumerate_law(shipped, at_once=1), routed_law(better, limit))


class Counted(Model):
    """A table that notes how many tokens each call reads."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self.calls: list[int] = []

    def extend(self, tokens, start, draft=None):
        self.calls.append(tokens.shape[1])
        return super().extend(tokens, start, draft)


RULES = {
    "random": lambda: RandomRoutingRule(0.6),
    "reward": lambda: RewardThresholdRule(0.5),
    "advantage": lambda: AdvantageRule(0.5),
    "oracle": lambda: AdvantageRule(0.0),
}
LONG = 4  # tokens of a step
OF_ROWS = ("calls", "drafted", "accepted", "emitted", "target_tokens")


def routed(rule: str, seeds, on_round=None, share=None, at_once=None):
    """Texts of rows of these seeds, their counters, and both models."""
    target, drafter = Counted(Table(VOCAB, 5)), Counted(Table(VOCAB, 55))
    coins, stats = ProductionCoins(list(seeds)), SpecStats()
    how = (target, ends, LONG, scores)
    judge = OracleStepTarget(*how, coins) if rule == "oracle" else StepTarget(*how)
    made = RULES[rule]() if share is None else RandomRoutingRule(share)
    engine = Engine(judge, StepDrafter(drafter, ends), made, ConstantLength(LONG), coins)

    def seen(context):
        return bool(on_round and on_round(context, target, drafter))

    context = run(engine, len(seeds), 24, stats, seen, at_once=at_once)
    return outputs(context), stats, target, drafter


@pytest.mark.parametrize("rule", RULES)
def test_texts_and_counters_of_rows_do_not_depend_on_their_neighbours(rule):
    """A batch is its rows alone, and its calls are shared: far fewer than those of the rows."""
    seeds = range(3, 11)
    both, stats, target, drafter = routed(rule, seeds)
    calls = [0, 0]
    for row, seed in enumerate(seeds):
        (alone,), own, *models = routed(rule, [seed])
        assert alone == both[row]
        for name in OF_ROWS:
            assert getattr(own, name)[0] == getattr(stats, name)[row], name
        for n, model in enumerate(models):
            calls[n] += len(model.calls)
    assert len(target.calls) < calls[0] / 2
    assert len(drafter.calls) < calls[1] / 2
    assert max(stats.accepted) > 0 < min(stats.calls)


@pytest.mark.parametrize("rule", RULES)
def test_a_row_waits_for_nobody(rule):
    """By its end there were no more calls of either model than tokens that it wrote with both."""
    seeds, over = range(3, 11), {}

    def note(context, target, drafter):
        for row, finished in enumerate(context.finished):
            if finished:
                over.setdefault(row, (len(target.calls), len(drafter.calls)))
        return False

    routed(rule, seeds, note)
    for row, seed in enumerate(seeds):
        _, _, target, drafter = routed(rule, [seed])
        own = len(target.calls) + len(drafter.calls)
        assert max(over[row]) <= own, row


def test_rows_of_which_one_drafts_and_one_is_written():
    """Both go on in every round; the one that emits nothing keeps its coins."""
    emitted = []
    routed("advantage", [3, 4], lambda context, *_: emitted.append(list(context.emitted)))
    assert any(min(round_) == 0 < max(round_) for round_ in emitted)
    assert all(0 <= count <= LONG for round_ in emitted for count in round_)


def test_a_stand_costs_nothing():
    """The target reads what it missed once it writes again."""
    (_,), own, target, _ = routed("random", [3])
    assert len(target.calls) == own.calls[0] == own.emitted[0] - own.accepted[0] > 0
    assert sum(target.calls) == own.target_tokens[0]
    assert routed("random", [3], share=1.0)[1].calls == [0]


def test_what_is_no_number_stands_nowhere_and_is_told():
    large, small = Table(VOCAB, 5), Table(VOCAB, 55)

    def nothing(context, draft):
        return torch.full((context.rows,), math.nan, dtype=torch.float64)

    def text(table, scorer, rule):
        target, coins = StepTarget(table, ends, MOST, scorer), ProductionCoins([1])
        drafter = StepDrafter(Model(small), ends)
        stats = SpecStats()
        engine = Engine(target, drafter, rule, ConstantLength(MOST), coins)
        return outputs(run(engine, 1, 6, stats)), stats

    _, stats = text(Model(large), nothing, AdvantageRule(1e9))
    assert stats.accepted == [0]

    class Broken(Model):
        def extend(self, tokens, start, draft=None):
            return super().extend(tokens, start, draft) * math.nan

    with pytest.raises(TargetError, match="behind token 0 of row 0 are no numbers"):
        text(Broken(large), nothing, AdvantageRule(1e9))
    found = StepTarget(Model(large), ends, MOST).score(
        Context.empty(2, 4), Draft(torch.zeros(2, 3).long(), torch.tensor([3, 2]), Opaque())
    )
    assert (found.laws.frames.shape, found.calls) == ((2, 1, 0), 0)


class Words:
    """A tokenizer of a few pieces of text."""

    pieces = ("a", ".", '"', "\n", " b!", "?)", "c;", " ", "3.14")

    def decode(self, ids, skip_special_tokens=True):
        return "".join(self.pieces[n] for n in ids)


@pytest.mark.parametrize(
    ("kind", "over"),
    [
        ("sentence", [(1,), (0, 1), (1, 2), (0, 3), (4,), (5,), (6,), (1, 7)]),
        ("line", [(3,), (0, 3), (3, 7)]),
        ("paragraph", [(3, 3)]),
    ],
)
def test_ends_of_steps(kind, over):
    step_ends = StepEnds(Words(), kind)
    for case in [*over, (0,), (8,), (0, 8), (0, 2), (7,), (0, 7)]:
        assert step_ends(torch.tensor([case, case])).tolist() == [case in over] * 2
    # what ends a text ends its last step
    step_ends = StepEnds(Words(), kind, eos=(0,))
    assert step_ends(torch.tensor([[1, 0], [0, 8]])).tolist() == [True, False]
