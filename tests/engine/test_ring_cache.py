"""The ring of a window against a cache of all slots: calls read the same where they may look."""

from __future__ import annotations

import random

import pytest
import torch

from mmspec.engine.cache import SpreadCache, StaticCache
from mmspec.engine.ring_cache import RingCache

LAYERS, ROWS, HEADS, DIM, SLOTS = 2, 3, 2, 4, 90
WINDOW, ROOM = 5, 7


def pair(room: int = ROOM) -> tuple[StaticCache, RingCache]:
    size = LAYERS, ROWS, HEADS, SLOTS, DIM, torch.float64
    return StaticCache(*size), RingCache(*size, "cpu", WINDOW, room)


def called(whole, ring, first, count, generator) -> bool:
    """A call that writes slots from `first` on, a number or one a row; do both read alike?

    Queries stand at these slots, and see so many in front of them as the window says.
    """
    new = torch.randn(2, ROWS, HEADS, count, DIM, dtype=torch.float64, generator=generator)
    starts = torch.tensor([first] * ROWS if isinstance(first, int) else first)[:, None]
    slots, length = starts + torch.arange(count), int(starts.max()) + count
    given = first if isinstance(first, int) else slots
    held = ring.begin_call(given, count, length)
    held = torch.arange(length)[None] if held is None else held
    held = held.expand(ROWS, -1)
    same = True
    for layer in range(LAYERS):
        truth = whole.update(layer, new, given, length)
        ours = ring.update(layer, new, given, length)
        for row in range(ROWS):
            for query in slots[row].tolist():
                seen = [s for s in range(query - WINDOW + 1, query + 1) if s >= 0]
                places = [(held[row] == s).nonzero()[:, 0].tolist() for s in seen]
                if any(len(place) != 1 for place in places):
                    return False
                for theirs, own in zip(truth, ours, strict=True):
                    got = own[row][:, [place[0] for place in places]]
                    same &= torch.equal(theirs[row][:, seen], got)
    return same


def rounds(ring, whole, seed: int, prefix: int, reach: int) -> bool:
    """A prefill, and rounds of drafts of up to `reach` slots that are taken back by chance."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    good = called(whole, ring, 0, prefix, generator)
    at = [prefix] * ROWS
    while max(at) + reach + 1 < SLOTS:
        root = list(at)
        count = rng.randint(1, reach + 1)
        if rng.random() < 0.5:  # in one call, or slot by slot
            good &= called(whole, ring, root, count, generator)
        else:
            for n in range(count):
                good &= called(whole, ring, [r + n for r in root], 1, generator)
        kept = [sorted(rng.sample(range(1, count), min(count - 1, rng.randint(0, 3)))) for _ in at]
        most = max(map(len, kept))
        if most:  # a branch of a tree becomes a chain
            source = [
                [r + k for k in own] + [r + n + 1 for n in range(len(own), most)]
                for r, own in zip(root, kept, strict=True)
            ]
            target = [[r + n + 1 for n in range(most)] for r in root]
            for cache in (whole, ring):
                cache.gather(torch.tensor(source), torch.tensor(target))
        at = [r + len(own) + 1 for r, own in zip(root, kept, strict=True)]
    return good


@pytest.mark.parametrize("prefix", [1, 4, 12, 13, 40])
@pytest.mark.parametrize("seed", [0, 1])
def test_rounds_read_what_a_cache_of_all_slots_has(prefix, seed):
    """Prompts shorter and longer than the ring, ragged rows, branches, rollbacks."""
    whole, ring = pair()
    assert ring.slots == WINDOW + ROOM
    assert rounds(ring, whole, seed, prefix, ROOM)


def test_too_small_a_room_loses_entries():
    """Drafts that go further than the room overwrite what is still seen, or this tests nothing."""
    whole, ring = pair(room=2)
    assert not rounds(ring, whole, 0, 12, ROOM)


@pytest.mark.parametrize("first", [3, 20, [20, 14, 18]], ids=str)
def test_a_call_of_more_than_there_is_room_for(first):
    """Such as a further turn, read in one call over a ring that is full or not."""
    whole, ring = pair()
    generator = torch.Generator().manual_seed(0)
    before = first if isinstance(first, int) else max(first)
    assert called(whole, ring, 0, before, generator)
    assert called(whole, ring, first, 30, generator)
    behind = first + 30 if isinstance(first, int) else [f + 30 for f in first]
    assert called(whole, ring, behind, 3, generator)


def test_memory_is_that_of_window_and_room():
    def ring(slots):
        return RingCache(LAYERS, ROWS, HEADS, slots, DIM, torch.float64, "cpu", WINDOW, ROOM)

    assert ring(10_000).nbytes == ring(100).nbytes == ring(WINDOW + ROOM).nbytes
    assert ring(6).slots == 6  # a short text needs no more


def test_text_goes_on_in_another_ring():
    """As much as it still knows of a text; rings may differ in room."""
    whole, ring = pair()
    generator = torch.Generator().manual_seed(0)
    assert called(whole, ring, 0, 40, generator)
    assert [ring.knows(n) for n in (40, 32, 31, 3)] == [40, 32, 0, 0]  # the last 12 are there
    for room in (3, 20):
        other = pair(room)[1]
        other.take(ring, 36)
        mine = pair()[0]
        mine.take(whole, 36)
        assert [other.knows(n) for n in (36, 20)] == [36, 0]
        assert called(mine, other, 36, 3, generator)
    ring.restart()
    assert ring.knows(3) == 3


def test_what_it_lends_comes_back():
    """Calls far behind its text leave places, and what it knows of the text, as they were."""
    whole, ring = pair()
    generator = torch.Generator().manual_seed(0)
    assert called(whole, ring, 0, 20, generator)
    held, knows = ring.data.clone(), [ring.knows(n) for n in range(21)]
    with SpreadCache([ring, whole]).lent(SLOTS - 4, 4):
        ring.begin_call(SLOTS - 4, 4, SLOTS)
        ring.update(0, torch.ones(2, ROWS, HEADS, 4, DIM, dtype=torch.float64), SLOTS - 4, SLOTS)
        assert not torch.equal(ring.data, held)
        assert ring.knows(20) == 0
    assert torch.equal(ring.data, held)
    assert [ring.knows(n) for n in range(21)] == knows
    assert called(whole, ring, 20, 3, generator)


def test_rows_leave_and_begin_anew():
    whole, ring = pair()
    generator = torch.Generator().manual_seed(0)
    assert called(whole, ring, 0, 30, generator)
    expected = ring.data[:, :, [0, 2]].clone()
    ring.select([0, 2], SLOTS)
    assert torch.equal(ring.data, expected)
    ring.restore()
    assert ring.data.shape[2] == ROWS
    one = ring.lines(slice(1, 2))
    one.restart()
    one.begin_call(0, 2, 2)
    new = torch.ones(2, 1, HEADS, 2, DIM, dtype=torch.float64)
    one.update(0, new, 0, 2)
    assert torch.equal(ring.data[0, :, 1:2, :, :2], new)


def test_a_part_beside_layers_of_all_slots():
    whole, ring = pair()
    both = SpreadCache([whole, ring], [0, 1, 1, 0])
    assert (both.slots, both.room) == (SLOTS, ROOM)
    assert whole.room is None
    generator = torch.Generator().manual_seed(0)
    ring.begin_call(0, 30, 30)
    for layer in range(4):
        new = torch.randn(2, ROWS, HEADS, 30, DIM, dtype=torch.float64, generator=generator)
        keys, _ = both.update(layer, new, 0, 30)
        assert torch.equal(keys, new[0])
    assert both.knows(20) == 0
    assert both.knows(30) == 30


def test_contained_stores_no_numbers_as_zeros():
    ring = pair()[1]
    ring.contained = True
    ring.begin_call(0, 30, 30)
    new = torch.full((2, ROWS, HEADS, 30, DIM), float("nan"), dtype=torch.float64)
    keys, values = ring.update(0, new, 0, 30)
    assert not keys.any()
    assert not values.any()
    assert not ring.data.any()
