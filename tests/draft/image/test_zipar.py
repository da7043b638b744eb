"""ZipAR: which cells a cell may see, how many calls it takes, and plain decoding at the limit."""

from __future__ import annotations

import pytest
import torch
from grids import LINES, SIDE, SQUARE, plain, with_lines

from mmspec.draft.image.zipar import ZipArDrafter
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Context
from mmspec.engine.laws import Opaque
from mmspec.engine.warp import Warp


def drawn(guided, grid, window, rows=2, seeds=(3, 4)):
    drafter = ZipArDrafter(guided, grid, window)
    context = Context.empty(rows, grid.length)
    drafter.start(context)
    return drafter.propose(context, [grid.length] * rows, ProductionCoins(seeds).round(0)[0])


@pytest.mark.parametrize("window", [SIDE, SIDE + 3])
@pytest.mark.parametrize("pads", [[0, 0], [0, 2]], ids=str)
def test_a_window_of_a_row_is_plain_decoding(tiny_llamagen, guided_rows, window, pads):
    with torch.inference_mode():
        guided = guided_rows(tiny_llamagen(), pads, warp=Warp(temperature=0))[0]
        wanted = plain(guided)
        draft = drawn(guided, SQUARE, window)
    assert torch.equal(draft.tokens, wanted)
    assert (draft.calls, draft.read) == (16, 16)
    assert isinstance(draft.law, Opaque)


def test_a_window_of_a_row_with_its_end(tiny_llamagen, guided_rows):
    """Forced tokens stand where they must, and count as tokens of the row."""
    model, greedy = tiny_llamagen(), Warp(temperature=0)
    with torch.inference_mode():
        _, prefix, mask = guided_rows(model, [0, 2])
        guided = with_lines(model, prefix, mask, greedy)
        wanted = plain(guided)
        draft = drawn(guided, LINES, LINES.stride)
        narrow = drawn(guided, LINES, 2)
    assert torch.equal(draft.tokens, wanted)
    assert not torch.equal(narrow.tokens, wanted)
    for tokens in (draft.tokens, narrow.tokens):
        assert torch.equal(LINES.tokens(LINES.codes(tokens)), tokens)
    assert narrow.calls == LINES.stride + 2 * (LINES.rows - 1)


@pytest.mark.parametrize("window", [1, 2, 3, 4])
def test_calls(tiny_llamagen, guided_rows, window):
    """columns + window · (rows − 1)."""
    with torch.inference_mode():
        draft = drawn(guided_rows(tiny_llamagen(), [0, 0])[0], SQUARE, window)
    assert draft.calls == SIDE + window * (SIDE - 1)


class Watched:
    """A decoder that notes what every call is told and may see."""

    def __init__(self, guided) -> None:
        self.guided, self.calls = guided, []

    def start(self, rows):
        self.guided.start(rows)

    def extend_at(self, tokens, positions, reach, known=None):
        self.calls.append((tokens[0].tolist(), positions[0].tolist(), reach, known.tolist()))
        return self.guided.extend_at(tokens, positions, reach, known)


@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_cell_sees_what_is_drawn_in_front_of_it(tiny_llamagen, guided_rows, window):
    """Cell (r, c) is drawn at turn c + window · r, and sees what has an earlier turn.

    The first cell of a row also sees the token that stands in for the last one above.
    """
    with torch.inference_mode():
        watched = Watched(guided_rows(tiny_llamagen(), [0, 0])[0])
        tokens = drawn(watched, SQUARE, window).tokens[0].tolist()
    turn_of = [p % SIDE + window * (p // SIDE) for p in range(16)]
    for turn, (told, positions, reach, known) in enumerate(watched.calls):
        now = [p for p in range(16) if turn_of[p] == turn]
        starting = [p for p in now if p % SIDE == 0 and p and turn_of[p - 1] >= turn]
        seen = {p for p in range(16) if turn_of[p] < turn}
        assert {p for p in range(16) if known[p]} == seen | {p - 1 for p in starting}
        assert {p - 1 for p in now} <= set(positions)
        assert reach == max(positions)
        # all that the last turn drew is read in, before anything builds on it
        assert {p for p in seen if turn_of[p] == turn - 1} <= set(positions)
        for token, place in zip(told, positions, strict=True):
            if place < 0:
                continue
            newest = max(p for p in range(place + 1) if p in seen)
            assert newest == place or place + 1 in starting
            assert token == tokens[newest]


def test_rows_of_a_batch_are_those_alone(tiny_llamagen, guided_rows):
    with torch.inference_mode():
        model = tiny_llamagen()
        together = drawn(guided_rows(model, [0, 2])[0], SQUARE, 2)
        for row, seed in enumerate((3, 4)):
            guided = guided_rows(model, [0, 2], rows=[row])[0]
            alone = drawn(guided, SQUARE, 2, rows=1, seeds=(seed,))
            assert torch.equal(alone.tokens, together.tokens[row : row + 1])


def test_the_end_of_a_row_is_certain(tiny_llamagen, guided_rows):
    """It is read as it will be, though the row above has not ended."""
    with torch.inference_mode():
        _, prefix, mask = guided_rows(tiny_llamagen(), [0, 0])
        watched = Watched(with_lines(tiny_llamagen(), prefix, mask, Warp(temperature=0)))
        drawn(watched, LINES, 2)
    seen = 0
    for told, positions, _, _ in watched.calls:
        for token, place in zip(told, positions, strict=True):
            if place >= 0 and LINES.forced[place] >= 0:
                assert token == LINES.forced[place]
                seen += 1
    assert seen >= LINES.rows - 1
