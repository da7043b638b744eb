"""Trees of another size: about twice or half as many nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from .draft_size import MOST_NODES

if TYPE_CHECKING:
    from .resolved import ResolvedConfig

_WIDEST = 16  # children of a node


def sized_trees(config: ResolvedConfig) -> list[dict[str, Any]]:
    """Options that make a configuration's trees about twice as large, and half as large.

    Of a published tree that is cut, all of it in place of twice as much. What the user has set
    stays; so there may be none.
    """
    options, own = config.options, cast(Any, config.drafter_options)
    if options.get("static_tree", "full") != "full":
        if {"static_nodes", "tree_widths"} & config.config.options.keys():
            return []
        half = config.draft_size().most_drafted // 2
        return [{"static_nodes": size} for size in (MOST_NODES, half) if size]
    name = next((n for n in ("tree_nodes", "tree_widths", config.drafter.knob) if n in options), "")
    if not name or name in config.config.options:
        return []
    usual, found = options[name], []

    def nodes(widths: tuple[int, ...]) -> int:
        return int(replace(own, tree_widths=widths).nodes(len(widths)))

    for factor in (2.0, 0.5):
        if name == "tree_widths":
            size: Any = widths_near(usual, round(factor * nodes(usual)), nodes)
        else:
            size = int(factor * config.draft_size().most_drafted)
        if size and size != usual:
            found.append({name: size})
    return found


def widths_near(
    widths: tuple[int, ...], wanted: int, nodes: Callable[[tuple[int, ...]], int]
) -> tuple[int, ...]:
    """Children of a node, level by level, of a tree with about as many nodes as are wanted.

    `nodes` counts those of a tree. One child is added, or taken away, at a time, on the level that
    brings it nearest; no level gets wider than the one before it.
    """
    best = widths
    while True:
        step = 1 if nodes(best) < wanted else -1
        near = [(*best[:i], best[i] + step, *best[i + 1 :]) for i in range(len(best))]
        near = [
            one
            for one in near
            if all(1 <= width <= _WIDEST for width in one) and sorted(one, reverse=True) == [*one]
        ]
        found = min(near, key=lambda one: abs(nodes(one) - wanted), default=best)
        if abs(nodes(found) - wanted) >= abs(nodes(best) - wanted):
            return best
        best = found
