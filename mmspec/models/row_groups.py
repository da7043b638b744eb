"""Rows of a batch that are read together, where each begins and ends at another place."""

from __future__ import annotations

from collections.abc import Sequence


def row_groups(begins: Sequence[int], ends: Sequence[int], call: int) -> list[range]:
    """Part rows into groups of neighbours, such that reading them takes least.

    Reading a group takes what lies between its first begin and its last end, in each of its rows,
    and as much as `call` places of one row besides.

    Args:
        begins, ends: of what every row needs.
    """
    least, since = [0], [0]  # for the first n rows, and the row that their last group begins with
    for stop in range(1, len(begins) + 1):
        begin, end = begins[stop - 1], ends[stop - 1]
        choices = []
        for start in range(stop - 1, -1, -1):
            begin, end = min(begin, begins[start]), max(end, ends[start])
            choices.append((least[start] + call + (stop - start) * (end - begin), start))
        cost, start = min(choices)
        least.append(cost)
        since.append(start)
    groups, stop = list[range](), len(begins)
    while stop:
        groups.append(range(since[stop], stop))
        stop = since[stop]
    return groups[::-1]
