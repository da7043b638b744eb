"""The static cache: writes, reads, branches, rows; nothing that was not written counts."""

from __future__ import annotations

import pytest
import torch

from mmspec.engine.cache import SpreadCache, StaticCache
from mmspec.engine.draft import Draft
from mmspec.engine.laws import OneHot

LAYERS, ROWS, HEADS, SLOTS, DIM = 2, 3, 2, 10, 4


def filled(generator: torch.Generator) -> StaticCache:
    cache = StaticCache(LAYERS, ROWS, HEADS, SLOTS, DIM)
    cache.data.normal_(generator=generator)
    return cache


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_layers_of_two_shapes(generator):
    """Each layer's entries are those of a cache of its own, through writes and moves."""
    parts = [StaticCache(2, ROWS, HEADS, SLOTS, DIM), StaticCache(1, ROWS, 1, SLOTS, 7)]
    shapes = [(HEADS, DIM), (1, 7), (HEADS, DIM)]
    spread = SpreadCache(parts, [0, 1, 0])
    alone = [StaticCache(1, ROWS, heads, SLOTS, dim) for heads, dim in shapes]
    assert spread.layers == 3
    for layer, (heads, dim) in enumerate(shapes):
        new = torch.randn(2, ROWS, heads, 4, dim, generator=generator)
        spread.write(layer, new, 3)
        alone[layer].write(0, new, 3)
    source, target = torch.tensor([[4, 6]] * ROWS), torch.tensor([[3, 4]] * ROWS)
    for cache in (spread, *alone):
        cache.gather(source, target)
        cache.select([0, 2], 7)
    for layer in range(3):
        for ours, own in zip(spread.read(layer, 7), alone[layer].read(0, 7), strict=True):
            assert torch.equal(ours, own)


def test_fresh_cache():
    cache = StaticCache(LAYERS, ROWS, HEADS, SLOTS, DIM, torch.float64)
    assert cache.slots == SLOTS
    assert cache.data.dtype == torch.float64
    assert cache.data.shape == (LAYERS, 2, ROWS, HEADS, SLOTS, DIM)


@pytest.mark.parametrize("n", [1, 4])
def test_one_first_slot_equals_a_slot_per_token(generator, n):
    new = torch.randn(2, ROWS, HEADS, n, DIM, generator=generator)
    together, apart = filled(generator), StaticCache(LAYERS, ROWS, HEADS, SLOTS, DIM)
    apart.data.copy_(together.data)
    together.write(1, new, 5)
    apart.write(1, new, torch.arange(5, 5 + n).expand(ROWS, -1))
    assert torch.equal(together.data, apart.data)


def test_write_per_row_by_hand(generator):
    """Every row has slots of its own, in any order; all else stays."""
    cache, slots = filled(generator), torch.tensor([[0, 1], [7, 3], [9, 8]])
    truth = cache.data.clone()
    new = torch.randn(2, ROWS, HEADS, 2, DIM, generator=generator)
    cache.write(1, new, slots)
    for row in range(ROWS):
        for n in range(2):
            truth[1, :, row, :, slots[row, n]] = new[:, row, :, n]
    assert torch.equal(cache.data, truth)


@pytest.mark.parametrize("slots", [5, torch.tensor([[5, 6]] * ROWS)], ids=["slices", "positions"])
def test_contained_stores_no_numbers_as_zeros(generator, slots):
    """So that a branch of a tree can't spoil those that may not read it."""
    plain, contained = filled(generator), StaticCache(LAYERS, ROWS, HEADS, SLOTS, DIM)
    contained.data.copy_(plain.data)
    spread = SpreadCache([contained])
    assert not spread.contained
    spread.contained = True
    assert contained.contained
    new = torch.randn(2, ROWS, HEADS, 2, DIM, generator=generator)
    bad = torch.zeros_like(new, dtype=torch.bool)
    for n, value in enumerate((float("nan"), float("inf"), -float("inf"))):
        new[n % 2, n, 0, 1, n], bad[n % 2, n, 0, 1, n] = value, True
    for cache in (plain, contained):
        cache.write(1, new, slots)
    stored = plain.data[1, :, :, :, 5:7]
    assert torch.equal(stored.isfinite(), ~bad)
    assert torch.equal(contained.data[1, :, :, :, 5:7], torch.where(bad, 0.0, new))


def test_read(generator):
    cache = filled(generator)
    keys, values = cache.read(1, 6)
    assert torch.equal(keys, cache.data[1, 0, :, :, :6])
    assert torch.equal(values, cache.data[1, 1, :, :, :6])


def test_write_past_the_end_is_an_error(generator):
    cache = filled(generator)
    with pytest.raises(RuntimeError):
        cache.write(0, torch.zeros(2, ROWS, HEADS, 3, DIM), SLOTS - 2)
    with pytest.raises(IndexError):
        cache.write(0, torch.zeros(2, ROWS, HEADS, 1, DIM), torch.full((ROWS, 1), SLOTS))


def test_gather_by_hand(generator):
    """Sources are read before any target is written, and rows differ."""
    cache = filled(generator)
    before = cache.data.clone()
    source = torch.tensor([[4, 5, 6], [2, 4, 4], [3, 2, 9]])
    target = torch.tensor([[4, 5, 6], [2, 3, 4], [2, 3, 4]])
    cache.gather(source, target)
    truth = before.clone()
    for row in range(ROWS):
        for k in range(3):
            truth[:, :, row, :, target[row, k]] = before[:, :, row, :, source[row, k]]
    assert torch.equal(cache.data, truth)


def test_select(generator):
    """Rows that stay keep their entries; later writes and moves go to them."""
    cache = filled(generator)
    before = cache.data.clone()
    cache.select([0, 2], 7)
    assert torch.equal(cache.data[..., :7, :], before[:, :, [0, 2], :, :7])
    new = torch.randn(2, 2, HEADS, 1, DIM, generator=generator)
    cache.write(0, new, torch.tensor([[1], [2]]))
    for row in range(2):
        assert torch.equal(cache.data[0, :, row, :, row + 1], new[:, row, :, 0])
    cache.gather(torch.tensor([[1]] * 2), torch.tensor([[0]] * 2))
    assert torch.equal(cache.data[:, :, :, :, 0], cache.data[:, :, :, :, 1])
    cache.select([1], 7)
    assert torch.equal(cache.data[0, :, 0, :, 2], new[:, 1, :, 0])
    cache.restore()
    assert cache.data.shape == before.shape
    cache.gather(torch.tensor([[1]] * ROWS), torch.tensor([[0]] * ROWS))
    assert torch.equal(cache.data[:, :, :, :, 0], cache.data[:, :, :, :, 1])


def test_spread_over_parts_equals_one_tensor(generator):
    """Three layers in parts of two and one against all in one, through every operation."""
    whole = StaticCache(3, ROWS, HEADS, SLOTS, DIM)
    spread = SpreadCache([StaticCache(n, ROWS, HEADS, SLOTS, DIM) for n in (2, 1)])
    assert (spread.slots, spread.nbytes) == (whole.slots, whole.nbytes)
    slots = torch.tensor([[0, 1], [7, 3], [9, 8]])
    rows = [0, 2]
    for layer in range(3):
        for place in (slots, 4):
            new = torch.randn(2, ROWS, HEADS, 2, DIM, generator=generator)
            whole.write(layer, new, place)
            spread.write(layer, new, place)
    for cache in (whole, spread):
        cache.gather(slots, torch.tensor([[2, 3]] * ROWS))
        cache.select(rows, SLOTS)
        cache.write(2, torch.ones(2, len(rows), HEADS, 1, DIM), torch.tensor(rows)[:, None])
    assert torch.equal(torch.cat([part.data for part in spread.parts]), whole.data)
    for layer in range(3):
        for ours, theirs in zip(spread.read(layer, 7), whole.read(layer, 7), strict=True):
            assert torch.equal(ours, theirs)


def test_gathered_branch_equals_recomputation(tiny_llamagen, guided_rows):
    """A kept branch leaves the keys and values that its tokens would have had as a chain."""
    model, generator = tiny_llamagen(), torch.Generator().manual_seed(3)
    parents = torch.tensor([[-1, -1, 0, 1, 1, 4], [-1, 0, 0, 0, 3, 4]])
    nodes = torch.randint(0, 16, parents.shape, generator=generator)
    path = torch.tensor([[1, 4, 5], [0, 3, 3]])  # row 1 keeps two nodes; padded by repeating
    tokens = torch.randint(0, 16, (2, 3), generator=generator)
    with torch.inference_mode():
        tree, chain = (guided_rows(model, [0, 2])[0] for _ in range(2))
        for guided in (tree, chain):
            guided.start(2)
            guided.extend(tokens, [-1, -1])  # positions -1, 0, 1: the root comes next
        root = torch.randint(0, 16, (2, 1), generator=generator)
        draft = Draft(nodes, torch.tensor([6, 6]), OneHot(), parents)
        tree.extend(torch.cat([root, nodes], 1), [2, 2], draft)
        tree.keep([2, 2], path)
        chain.extend(torch.cat([root, nodes.gather(1, path)], 1), [2, 2])
    for row, kept in ((0, 3), (1, 2), (2, 3), (3, 2)):
        end = tree.offset + 3 + kept
        pad = int(tree.pads[row])
        ours, theirs = (g.cache.data[:, :, row, :, pad:end] for g in (tree, chain))
        assert torch.allclose(ours, theirs, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("pads", "starts", "poison"),
    [([0, 0], [4, 4], torch.nan), ([0, 0], [6, 2], 1e6), ([0, 2], [6, 2], 1e6)],
    ids=["even", "ragged", "padded"],
)
def test_nothing_unwritten_is_read(tiny_llamagen, guided_rows, pads, starts, poison):
    """Results don't change when the cache is full of poison before use.

    Rows that are behind read others' slots under a mask: what lies there must be finite (0 · nan is
    nan), but has no weight. Where all rows are even, nothing unwritten is even read.
    """
    model, generator = tiny_llamagen(), torch.Generator().manual_seed(4)
    tokens = torch.randint(0, 16, (2, 12), generator=generator)
    steps = [([-1, -1], 1), ([0, 0], 6), (starts, 3), ([2, 2], 1), (starts, 2)]
    parents = torch.tensor([[-1, 0, 0], [-1, -1, 1]])
    laws = []
    with torch.inference_mode():
        for dirty in (False, True):
            guided = guided_rows(model, pads)[0]
            if dirty:
                guided.cache = guided.decoder.cache(len(guided.prefix), guided.slots)
                guided.cache.data.fill_(poison)
            guided.start(2)
            seen = [guided.extend(tokens[:, :n], start) for start, n in steps]
            if poison == poison:
                draft = Draft(tokens[:, 1:4], torch.tensor([3, 3]), OneHot(), parents)
                seen.append(guided.extend(tokens[:, :4], starts, draft))
            laws.append(torch.cat(seen, 1))
    assert laws[0].isfinite().all()
    assert torch.equal(*laws)
