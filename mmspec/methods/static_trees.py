"""Trees whose shape is fixed beforehand, as the children of every node."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Literal

StaticTree = Literal["full", "recycling-80"]
Children = tuple[tuple[int, ...], ...]
"""By level how many children each node of the level above has; the first level's is the root."""

# the tree of 80 nodes of Luo et al. 2024, found there by greedy search on their own models: a node
# is worth a place the more, the likelier the successors on its path are
_RECYCLING: Children = (
    (8,),
    (8, 4, 3, 2, 1, 1, 1, 1),
    (8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0),
    (5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0),
    (3, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0),
    (2, 0, 0, 1, 0, 0, 0, 0),
)
RECYCLING_WIDTHS = tuple(map(max, _RECYCLING))
"""Most children of a node in that tree, by level."""


def children_of(
    widths: tuple[int, ...], tree: StaticTree = "full", most: int | None = None
) -> Children:
    """The children of every node of a tree in which none of level d has more than `widths[d]`.

    Args:
        tree: "full": all nodes have as many; "recycling-80": they have those that the published
            tree has, too, which ends after six levels.
        most: nodes that stay, those with the most nodes behind them; None: all.
    """
    found: list[tuple[int, ...]] = []
    if tree == "full":
        for width in widths:
            found.append((width,) * (sum(found[-1]) if found else 1))
        return _first(tuple(found), most)
    there = [True]  # of the published tree's nodes of the level above
    for width, level in zip(widths, _RECYCLING, strict=False):
        own = list(zip(there, level, strict=True))
        found.append(tuple(min(width, count) for kept, count in own if kept))
        there = [kept and rank < width for kept, count in own for rank in range(count)]
    return _first(tuple(found), most)


def _first(children: Children, most: int | None) -> Children:
    """The `most` nodes of a tree that have the most nodes behind them, the upper ones first.

    A greedy search takes a node before all that lie behind it, and the likelier a path is, the more
    nodes behind it are worth a place: so this is about the order in which a search has taken them.
    """
    if most is None or sum(map(sum, children)) <= most:
        return children
    behind: list[list[int]] = [[0] * sum(children[-1])]  # by level, of every node
    for level in reversed(children[1:]):
        ends = [0, *accumulate(level)]
        below = [1 + count for count in behind[0]]
        behind.insert(0, [sum(below[a:b]) for a, b in pairwise(ends)])
    order = [(-count, d, n) for d, level in enumerate(behind) for n, count in enumerate(level)]
    kept = {(d, n) for _, d, n in sorted(order)[:most]}
    found: list[tuple[int, ...]] = []
    for d, level in enumerate(children):
        ends = [0, *accumulate(level)]
        there = [not d or (d - 1, parent) in kept for parent in range(len(level))]
        counts = [sum((d, n) in kept for n in range(a, b)) for a, b in pairwise(ends)]
        found.append(tuple(count for count, stays in zip(counts, there, strict=True) if stays))
    return tuple(level for level in found if sum(level))


def places(children: Children, most: int) -> list[list[int]]:
    """By level, where every node stands among its parents' first `most` children each."""
    return [
        [parent * most + rank for parent, count in enumerate(level) for rank in range(count)]
        for level in children
    ]
