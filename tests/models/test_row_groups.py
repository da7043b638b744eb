"""Rows are grouped such that reading them takes least."""

from __future__ import annotations

import itertools

import pytest
import torch

from mmspec.models.prefill import read_together
from mmspec.models.row_groups import row_groups


def cost(groups, begins, ends, call):
    return sum(
        call + len(g) * (max(ends[r] for r in g) - min(begins[r] for r in g)) for g in groups
    )


def partitions(count):
    """All ways to part rows into neighbours."""
    for cuts in itertools.product((False, True), repeat=count - 1):
        bounds = [0, *(n + 1 for n, cut in enumerate(cuts) if cut), count]
        yield [range(*pair) for pair in itertools.pairwise(bounds)]


@pytest.mark.parametrize("call", [0, 3, 20, 1000])
@pytest.mark.parametrize("seed", range(8))
def test_no_other_groups_take_less(seed, call):
    dice = torch.Generator().manual_seed(seed)
    begins = torch.randint(0, 60, (7,), generator=dice).tolist()
    ends = [b + int(torch.randint(1, 40, (1,), generator=dice)) for b in begins]
    groups = row_groups(begins, ends, call)
    assert [row for group in groups for row in group] == [*range(7)]
    least = min(cost(other, begins, ends, call) for other in partitions(7))
    assert cost(groups, begins, ends, call) == least


def test_prompts_alike_are_read_together():
    """The long one is read by itself; of the others a little padding costs less than a call."""
    begins = torch.tensor([900, 903, 0, 910, 901])
    assert read_together(begins, 1000) == [slice(0, 2), slice(2, 3), slice(3, 5)]
    assert read_together(torch.zeros(3, dtype=torch.long), 10) == [slice(0, 3)]
