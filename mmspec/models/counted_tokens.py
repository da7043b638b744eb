"""Tokens of a call that count, packed: of rows with drafts of different lengths, no filling.

A call is as wide as its longest row, and what fills the others would cost a processor as much as
tokens do. The maps of single tokens, nearly all of the work, take those that count side by side;
attention takes rows, where the others are zeros.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class CountedTokens:
    """Places of the tokens that count.

    Args:
        counts: which of all do `[R, N]`; None: every one.
    """

    def __init__(self, counts: Tensor | None = None) -> None:
        self._count = 0 if counts is None else counts.numel()
        self._places = None if counts is None else counts.flatten().nonzero().squeeze(1)

    def mapped(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Results `[R, N, …]` of a function of single tokens, of all of them `[R, N, D]`."""
        if self._places is None:
            return function(x)
        return self.spread(function(self.of(x.flatten(0, 1)))).unflatten(0, x.shape[:2])

    def of(self, x: Tensor) -> Tensor:
        """Entries `[M, …]` of those that count, of all `[R · N, …]`."""
        return x if self._places is None else x[self._places]

    def spread(self, x: Tensor) -> Tensor:
        """Entries of all `[R · N, …]`, zeros where none counts, of those that do `[M, …]`."""
        if self._places is None:
            return x
        return x.new_zeros(self._count, *x.shape[1:]).index_copy_(0, self._places, x)


ALL = CountedTokens()
