"""Attention in parts is attention."""

from __future__ import annotations

import pytest
import torch

from mmspec.models.call_masks import additive
from mmspec.models.merged_attention import merged_attention
from mmspec.models.parted_attention import parted_attention, parts_of

ROWS, LENGTH = 5, 900


def ragged(n: int, begins: list[int], ends: list[int]) -> torch.Tensor:
    """Mask of rows with entries of their own, the last `n` of them causal."""
    keys = torch.arange(LENGTH)
    last = torch.tensor(ends)[:, None] - n + torch.arange(n)
    allowed = (keys >= torch.tensor(begins)[:, None, None]) & (keys <= last[..., None])
    return additive(allowed, torch.float64)[:, None]


@pytest.mark.parametrize("n", [1, 6])
@pytest.mark.parametrize("shared", [1, 2])
def test_it_is_the_same_attention(n, shared):
    mask = ragged(n, [890, 880, 0, 870, 500], [LENGTH, 900, 620, 895, 893])
    parts = parts_of(mask)
    assert [(rows.start, rows.stop) for rows, _ in parts] == [(0, 2), (2, 3), (3, 4), (4, 5)]
    torch.manual_seed(0)
    queries = torch.randn(ROWS, 4, n, 8, dtype=torch.float64)
    keys, values = torch.randn(2, ROWS, 4 // shared, LENGTH, 8, dtype=torch.float64)
    whole = merged_attention(queries, keys, values, mask)
    assert torch.allclose(parted_attention(queries, keys, values, mask, parts), whole)


def test_a_mask_for_all_rows_parts_none_from_another():
    mask = ragged(2, [700] * ROWS, [LENGTH] * ROWS)[:1]
    mask = torch.nn.functional.pad(mask, (600, 0), value=-torch.inf)
    parts = parts_of(mask)
    assert parts == [(slice(None), slice(1300, 1500))]
    torch.manual_seed(0)
    queries = torch.randn(ROWS, 2, 2, 8, dtype=torch.float64)
    keys, values = torch.randn(2, ROWS, 2, 1500, 8, dtype=torch.float64)
    whole = merged_attention(queries, keys, values, mask)
    assert torch.allclose(parted_attention(queries, keys, values, mask, parts), whole)


def test_what_no_part_reads_may_hold_anything():
    """So that nobody pays for it."""
    mask = ragged(1, [890, 880, 0, 870, 500], [LENGTH] * ROWS)
    queries = torch.randn(ROWS, 2, 1, 8, dtype=torch.float64)
    keys, values = torch.randn(2, ROWS, 2, LENGTH, 8, dtype=torch.float64)
    parts = parts_of(mask)
    before = parted_attention(queries, keys, values, mask, parts)
    keys[0, :, :800], values[1, :, :870] = torch.nan, torch.nan
    assert torch.equal(parted_attention(queries, keys, values, mask, parts), before)


def test_rows_that_lie_alike_are_read_as_one():
    assert parts_of(ragged(2, [0] * ROWS, [LENGTH] * ROWS)) == []
    assert parts_of(ragged(2, [0, 9, 3, 1, 30], [LENGTH] * ROWS)) == []
    assert parts_of(ragged(2, [700, 709, 701, 700, 730], [LENGTH] * ROWS)) == [
        (slice(0, 5), slice(700, 900))
    ]
    assert parts_of(None) == []
    assert parts_of(torch.zeros(3, LENGTH)) == []  # all rows read alike


def test_a_row_that_reads_nothing_stays_as_it_is():
    """One that runs no more may lie behind all keys."""
    mask = ragged(1, [0, 0, 0, 0, 0], [LENGTH] * ROWS)
    mask[1] = -torch.inf
    assert parts_of(mask) == []
