"""Prefill in chunks: the calls that read a prompt, so that its length does not set their size."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .row_groups import row_groups

PREFILL_CHUNK = 1024  # columns of a prompt that a call reads, where nobody says it
WHOLE = 2**31  # more columns than any prompt has
# columns of a row that are read while the weights are: on a processor, and elsewhere
_WEIGHTS = {"cpu": 32}
_WEIGHTS_ELSEWHERE = 2048


def chunks(
    first: int, length: int, most: int, groups: Tensor | None = None
) -> Iterator[tuple[int, int]]:
    """Columns `[begin, end)` of the calls that read a prompt's columns `first` up to `length`.

    Args:
        most: columns of a call. A group that is longer is read in one call all the same.
        groups: of all columns `[R, length]`, see `Setting.both_ways`: those of one group read each
            other, so that they are in one call. None: there are none.
    """
    ends: Sequence[int] = range(1, length + 1) if groups is None else _ends(groups)
    begin = first
    while begin < length:
        at = bisect_right(ends, begin + most) - 1
        if at < 0 or ends[at] <= begin:
            at += 1
        yield begin, ends[at]
        begin = ends[at]


def read_together(begins: Tensor, length: int) -> list[slice]:
    """Neighbouring rows whose prompts are read in the same calls, so that little padding is.

    Args:
        begins: the first column that every row has to read `[R]`.
        length: columns of a row.
    """
    weights = _WEIGHTS.get(begins.device.type, _WEIGHTS_ELSEWHERE)
    groups = row_groups(begins.tolist(), [length] * len(begins), weights)
    return [slice(group.start, group.stop) for group in groups]


def _ends(groups: Tensor) -> list[int]:
    """Columns behind which no row has a group that has begun and goes on."""
    within = torch.zeros_like(groups[0], dtype=torch.bool)
    for group in groups[groups >= 0].unique().tolist():
        read = (groups == group).cumsum(1)
        within |= ((read > 0) & (read < read[:, -1:])).any(0)
    return [int(column) + 1 for column in torch.nonzero(~within)[:, 0]]
