"""Draft size of a method: how far ahead it drafts, and how many nodes that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .part import DraftOptions
    from .resolved import ResolvedConfig

MOST_NODES = 256  # of a draft


class DraftSize:
    """Sizes of the drafts of a configuration.

    Args:
        config: its parts and options.
        stride: positions in a row of the picture, for those who draft rows.
    """

    def __init__(self, config: ResolvedConfig, stride: int = 1) -> None:
        self._config, self._stride = config, stride
        self._each: list[DraftOptions] = [options for _, options in config.drafters]
        self._inner = () if config.inner is None else (config.inner.options,)
        # a tree that several drafters make is cut to its own size
        self._cut = getattr(config.drafter_options, "tree_nodes", None) if config.merged else None

    def nodes(self, depth: int) -> int:
        """Most nodes of a draft that goes `depth` tokens ahead."""
        total = sum(options.nodes(depth) for options in self._each)
        return total if self._cut is None else min(total, self._cut)

    def draft_calls(self, depth: int) -> list[int]:
        """Tokens a row that every call of a draft model reads for a draft `depth` tokens deep."""
        return [tokens for options in self._each for tokens in options.calls(depth)]

    @property
    def most_drafted(self) -> int:
        """Nodes of the largest draft that this configuration can ask for."""
        return self.nodes(self.deepest)

    @property
    def most_drawn(self) -> int:
        """Most nodes with a law of a drafter's in a draft, dropped ones included."""
        config, deepest = self._config, self.deepest
        drawn = sum(options.drawn(deepest) for part, options in config.drafters if part.laws)
        if config.merged:  # one table of laws for all
            drawn = max(drawn, self.most_drafted)
        if config.inner is not None and config.inner.part.laws:
            drawn += config.inner.options.drawn(self._within)
        return drawn

    @property
    def most_read(self) -> int:
        """Most tokens a row in one call of the target or of a draft model."""
        calls = [
            n for o in self._inner for n in (o.nodes(self._within) + 1, *o.calls(self._within))
        ]
        return max(self.most_drafted + 1, 0, *self.draft_calls(self.deepest), *calls)

    @property
    def largest(self) -> int:
        """Most nodes that are drawn for a draft or read in one call, dropped ones included."""
        drawn = [options.drawn(self.deepest) for options in self._each]
        drawn += [options.drawn(self._within) for options in self._inner]
        return max(self.most_read - 1, *drawn)

    @property
    def _within(self) -> int:
        """Most tokens ahead of an inner draft."""
        return int(self._config.options.get("inner_draft_tokens", 0))

    @property
    def deepest(self) -> int:
        """Most tokens ahead that this configuration may draft."""
        return int(self._config.options.get("max_draft_tokens", self.first_drafted))

    @property
    def first_drafted(self) -> int:
        """Tokens ahead in the first round: a window, rows, the tree's levels, or γ tokens."""
        return max(int(options.first(self._stride)) for options in self._each)
