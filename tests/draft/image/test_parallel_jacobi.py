"""Parallel Jacobi decoding: exact with one row at a time, and what tokens may see with several."""

from __future__ import annotations

import pytest
import torch
from grids import LINES, SIDE, SQUARE, plain, with_lines
from toys import EXACT, Table, distance, outputs

from mmspec.draft.image.parallel_jacobi import ParallelJacobiDrafter, _Picture
from mmspec.engine.accept.unverified import UnaskedTarget, UnverifiedRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Context
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.proof.enumeration import enumerate_law
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp
from mmspec.models.token_grid import TokenGrid


class Cached:
    """A target whose laws are a table's, of the tokens in its cache that a call may read."""

    def __init__(self, table: Table, limit: int) -> None:
        self.table, self.limit = table, limit

    def start(self, rows):
        self.cache = torch.zeros(rows, self.limit, dtype=torch.long)

    def extend_at(self, tokens, positions, reach, known):
        assert reach == int(positions.max())
        for row, places in enumerate(positions.tolist()):
            for n, place in enumerate(places):
                if place >= 0:
                    self.cache[row, place] = tokens[row, n]
        laws = [
            [
                self.table(tuple(t for k, t in enumerate(cache[: place + 1]) if seen[n][k]))
                for n, place in enumerate(places)
            ]
            for cache, places, seen in zip(
                self.cache.tolist(), positions.tolist(), known.tolist(), strict=True
            )
        ]
        return torch.tensor(laws, dtype=torch.float64)


def law_of(rows: int, window: int, lag: int, grid: TokenGrid, table: Table) -> dict:
    def shipped(coins, count):
        drafter = ParallelJacobiDrafter(Cached(table, grid.length), grid, rows, window, lag)
        parts = UnverifiedRule(), ConstantLength(grid.length), coins
        engine = Engine(UnaskedTarget(), drafter, *parts)
        return outputs(run(engine, count, grid.length, SpecStats()))

    return enumerate_law(shipped, at_once=1)


@pytest.mark.parametrize(("rows", "lag"), [(1, 1), (2, 2)])
@pytest.mark.parametrize("window", [1, 2])
def test_a_row_that_waits_for_the_one_above_is_exact(rows, window, lag):
    grid, table = TokenGrid(2, 2), Table(2, 7)
    law = law_of(rows, window, lag, grid, table)
    assert distance(law, table.joint(4)) < EXACT


def test_side_by_side_it_is_not():
    grid, table = TokenGrid(2, 2), Table(2, 7)
    assert distance(law_of(2, 2, 1, grid, table), table.joint(4)) > 1e-3


def drawn(guided, grid, rows, window, lag, seeds=(3, 4)):
    drafter = ParallelJacobiDrafter(guided, grid, rows, window, lag)
    context = Context.empty(len(seeds), grid.length)
    drafter.start(context)
    budget = [grid.length] * len(seeds)
    return drafter.propose(context, budget, ProductionCoins(list(seeds)).round(0)[0])


@pytest.mark.parametrize(("rows", "lag"), [(1, 1), (3, SIDE)])
@pytest.mark.parametrize("pads", [[0, 0], [0, 2]], ids=str)
def test_greedy_text_is_plains(tiny_llamagen, guided_rows, rows, lag, pads):
    with torch.inference_mode():
        guided = guided_rows(tiny_llamagen(), pads, warp=Warp(temperature=0))[0]
        wanted = plain(guided)
        draft = drawn(guided, SQUARE, rows, 3, lag)
    assert torch.equal(draft.tokens, wanted)
    assert draft.calls <= 16


def test_forced_tokens_stand_where_they_must(tiny_llamagen, guided_rows):
    model, greedy = tiny_llamagen(), Warp(temperature=0)
    with torch.inference_mode():
        _, prefix, mask = guided_rows(model, [0, 2])
        guided = with_lines(model, prefix, mask, greedy)
        wanted = plain(guided)
        exact = drawn(guided, LINES, 1, 3, 1)
        fast = drawn(guided, LINES, 3, 3, 1)
    assert torch.equal(exact.tokens, wanted)
    assert torch.equal(LINES.tokens(LINES.codes(fast.tokens)), fast.tokens)
    assert fast.calls < exact.calls


def test_a_guess_is_no_copy_for_its_own_row():
    """Rows of 4; the second waits for the first, whose last place is guessed, and so the third."""
    picture = _Picture(16, 4)
    picture._first, picture._held = [3, 6, 8, 12], [1, 2, 0, 0]
    picture._stands[[0, 1, 2, 4, 5]] = True
    plan = picture.plan(rows=3, window=2, lag=2)
    assert [line.number for line in plan.lines] == [0, 2]
    assert plan.stand_ins == [(7, 7)]
    seen = picture.seen(plan.inputs, plan)
    # what else its own row guesses has not been read as it is now
    assert seen[plan.inputs.index(7)].nonzero()[:, 0].tolist() == [0, 1, 2, 4, 5, 7]


def test_a_picture_does_not_depend_on_its_neighbours(tiny_llamagen, guided_rows):
    """Which come further in a call, or less far."""
    with torch.inference_mode():
        guided = guided_rows(tiny_llamagen(), [0, 0, 0])[0]
        alike = [drawn(guided, SQUARE, 3, 3, 1, (3, *others)) for others in ((4, 9), (5, 7))]
    assert torch.equal(alike[0].tokens[0], alike[1].tokens[0])
    assert not torch.equal(alike[0].tokens[1:], alike[1].tokens[1:])


def test_what_a_call_reads():
    """Rows of 4; 0, 1, 2 and 4 stand, of which 4 was not read since; 3 and 5 are guesses."""
    picture = _Picture(16, 4)
    picture._first, picture._held = [3, 5, 8, 12], [1, 1, 0, 0]
    picture._stands[[0, 1, 2, 4]] = True
    picture._unread = {4}
    plan = picture.plan(rows=3, window=2, lag=1)
    assert [(line.number, line.first, line.end, line.held, line.room) for line in plan.lines] == [
        (0, 3, 4, 1, False),
        (1, 5, 7, 1, True),
        (2, 8, 10, 0, True),
    ]
    assert plan.inputs == [2, 3, 4, 5, 6, 7, 8, 9]
    assert plan.stand_ins == [(7, 4)]
    seen = picture.seen(plan.inputs, plan)
    read = {place: seen[n].nonzero()[:, 0].tolist() for n, place in enumerate(plan.inputs)}
    assert read[2] == [0, 1, 2, 4]  # a slot reads nothing behind it: 4 is for those that come later
    assert read[3] == [0, 1, 2, 3, 4]
    assert read[4] == [0, 1, 2, 3, 4]  # 3 is the end of the row above, as it is guessed
    assert read[6] == [0, 1, 2, 3, 4, 5, 6]
    assert read[7] == [0, 1, 2, 4, 7]  # a copy of 4, which knows no guesses
    assert read[8] == [0, 1, 2, 4, 7, 8]
    assert read[9] == [0, 1, 2, 4, 7, 8, 9]
    # 3 falls, and 5 stands as well as 6; 8 stands and 9 falls
    picture.commit(plan, [False, True, True, True, False])
    assert picture._first == [4, 8, 10, 12]
    assert picture._unread == {3, 7, 9}
    assert picture._held == [0, 0, 1, 0]
    after = picture.plan(rows=3, window=2, lag=1)
    assert [line.number for line in after.lines] == [2, 3]
    assert after.stand_ins == []  # the window of the row above goes as far as its end
    assert not picture.over


def test_rows_wait_and_only_so_many_are_under_way(tiny_llamagen, guided_rows):
    with torch.inference_mode():
        guided = guided_rows(tiny_llamagen(), [0, 0])[0]
        extend, rows = guided.extend_at, []

        def watched(words, places, reach, seen):
            rows.append([len({p // SIDE for p in line if p >= 0}) for line in places.tolist()])
            return extend(words, places, reach, seen)

        guided.extend_at = watched
        calls = [drawn(guided, SQUARE, count, 2, 1).calls for count in (1, 2, 4)]
    assert calls == sorted(calls, reverse=True)
    assert len(rows) == sum(calls)
    assert max(map(max, rows[: calls[0]])) <= 2  # a row, and the end of the one above
    assert max(map(max, rows[-calls[2] :])) >= 3
