"""How far ahead a configuration drafts, and how many nodes that is; imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .methods import DYNAMIC, ROWED, TREES, WINDOWED

if TYPE_CHECKING:
    from .config import SpecConfig


class Extent:
    """Sizes of the drafts of a configuration.

    Args:
        config: complete or not, see `SpecConfig.resolved`.
    """

    def __init__(self, config: SpecConfig) -> None:
        self.config = config.resolved()

    def nodes(self, depth: int) -> int:
        """Most nodes of a draft that goes `depth` tokens ahead."""
        total = sum(self._nodes(name, depth) for name in self.config.drafters)
        merged = self.config.drafter == "merged"
        return min(total, self._number("tree_nodes")) if merged else total

    def draft_calls(self, depth: int) -> list[int]:
        """Tokens a row that every call of a draft model reads for a draft `depth` tokens deep.

        A tree takes one call a level; all but the first read the root and the tree so far, of a
        dynamic one the nodes that get children. Blocks are counted as one.
        """
        calls: list[int] = []
        for name in self.config.drafters:
            if name == "model":
                calls += [1] * depth
            if name == "block":
                calls.append(depth)
            if name in ("tree", *DYNAMIC):
                size = self._fixed if name == "tree" else self._read
                calls += [1 + size(level) for level in range(min(depth, self._first(name)))]
        return calls

    @property
    def most_drafted(self) -> int:
        """Nodes of the largest draft that this configuration can ask for."""
        return self.nodes(self.deepest)

    @property
    def most_read(self) -> int:
        """Most tokens a row in one call of the target or of a draft model."""
        return max(self.most_drafted + 1, *self.draft_calls(self.deepest), 0)

    @property
    def largest(self) -> int:
        """Most nodes that are drawn for a draft or read in one call, dropped ones included."""
        each = (self._drawn(name, self.deepest) for name in self.config.drafters)
        return max(self.most_read - 1, *each)

    @property
    def deepest(self) -> int:
        """How far ahead this configuration may draft."""
        parts = self.config
        if parts.drafter in ("null", "zipar"):
            return 0
        if parts.length == "constant" or parts.drafter in TREES:
            return self.first_drafted
        if parts.length == "goodput" and parts.drafter in WINDOWED:
            return self.config.window
        return self.config.max_draft_tokens

    @property
    def first_drafted(self) -> int:
        """How far ahead the first round drafts: a window, rows, the tree's levels, or γ tokens."""
        return max(self._first(name) for name in self.config.drafters)

    def _nodes(self, drafter: str, depth: int) -> int:
        if drafter in ("tree", "recycling"):
            return self._fixed(depth)
        if drafter in DYNAMIC:
            return min(self._grown(depth), self._number("tree_nodes"))
        return depth

    def _drawn(self, drafter: str, depth: int) -> int:
        """Most nodes of a drafter's tree, with those that are drawn and not kept."""
        drops = drafter in DYNAMIC and self.config.siblings != "top"
        return self._grown(depth) if drops else self._nodes(drafter, depth)

    def _fixed(self, depth: int) -> int:
        """Nodes in the first levels of a tree of `tree_widths`."""
        level, nodes = 1, 0
        for width in self.config.tree_widths[:depth]:
            level *= width
            nodes += level
        return nodes

    def _grown(self, depth: int) -> int:
        """Nodes in the first levels of a dynamic tree."""
        return sum(self._levels(depth))

    def _read(self, depth: int) -> int:
        """Those of them that may get children: the draft model reads no others."""
        beam = self._number("tree_beam")
        return sum(min(level, beam) for level in self._levels(depth))

    def _levels(self, depth: int) -> list[int]:
        """Nodes of each of a dynamic tree's first levels."""
        beam, width = self._number("tree_beam"), self._number("tree_width")
        levels: list[int] = []
        for _ in range(min(depth, self._number("tree_depth"))):
            levels.append(min(levels[-1] if levels else 1, beam) * width)
        return levels

    def _first(self, drafter: str) -> int:
        if drafter in ("tree", "recycling"):
            return len(self.config.tree_widths)
        if drafter in DYNAMIC:
            return self._number("tree_depth")
        if drafter in ROWED:
            return int(self.config.draft_rows or 1) * self.config.stride
        return self.config.window if drafter in WINDOWED else self._number("num_draft_tokens")

    def _number(self, knob: str) -> int:
        return int(getattr(self.config, knob) or 0)  # None: no part reads it
