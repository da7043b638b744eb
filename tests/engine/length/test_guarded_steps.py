"""The guard of drafts where rows wait for others, and where targets write steps of text."""

from __future__ import annotations

import pytest
from machines import known_plain
from toys import Table, TableModel

from mmspec.draft.steps import StepDrafter
from mmspec.engine.accept.routing import RandomRoutingRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length import guard as guards
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.length.guard import Guard, GuardedLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.models.step_target import StepTarget


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_all_that_steps_take_is_in_the_account(rows, monkeypatch):
    """Also rounds in which all rows wait, and those in which the target writes a whole step."""
    time, waits = [0.0], []
    monkeypatch.setattr(guards, "now", lambda: time[0])

    class Model(TableModel):
        def __init__(self, table, price):
            super().__init__(table)
            self.price = price

        def extend(self, tokens, start, draft=None):
            time[0] += self.price
            return super().extend(tokens, start, draft)

        def leave(self, finished):
            """A table runs every row."""

    def ends(tokens):
        return tokens[:, -1] == 0

    def heard(context):
        waits.append(not any(context.emitted))
        return False

    guard = Guard(known_plain(range(1, rows + 1)), 0)
    target, drafter = Model(Table(4, 1), 1.0), Model(Table(4, 2), 0.1)
    parts = StepTarget(target, ends, 8), StepDrafter(drafter, ends), RandomRoutingRule(0.5)
    length = GuardedLength(ConstantLength(8), guard, prompted=False)
    engine = Engine(*parts, length, ProductionCoins([*range(rows)]))
    run(engine, rows, 60, SpecStats(), heard)
    assert any(waits) == (rows > 1)
    assert guard.spent == pytest.approx(time[0], rel=0.01)


def test_a_round_that_writes_more_than_was_drafted_does_not_end_a_trial():
    guard = Guard(known_plain([1]), 0)
    assert guard.drafts(1)
    guard._stands = False
    guard.told(1, 30.0, 30.0, 1)  # a step in place of a draft that fell
    assert guard.drafts(1)
    guard.told(1, 1.0, 30.0, 1)
    assert not guard.drafts(1)


def test_a_plain_round_behind_waiting_tells_nothing_of_plain_rounds():
    guard = Guard(ledger := known_plain([2]), 0)
    guard.told(2, 0.0, 5.0, 4)
    guard.told(2, 8.0, 2.0, 0)
    assert ledger.plain.at(2) == 1.0
    assert guard.spent == 7.0
    guard.told(2, 1.0, 2.0, 0)
    assert ledger.plain.at(2) > 1.0
