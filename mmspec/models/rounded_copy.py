"""The target on rounded weights, over the target's own cache: a draft model without a prefill."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from ..engine.draft import Context, Draft
from .decoders import Decoder
from .guided import GuidedDecoder
from .running_rows import LayersOfRows


class RoundedCopy(GuidedDecoder):
    """A network with the target's layers that reads what the target has committed.

    What it writes stands behind the last committed token, where the target's next call writes
    anew. So it has read every committed token as the target has, for nothing.

    Args:
        decoder: the network, such as `CausalDecoder.rounded`; its keys and values are laid out as
            the target's.
        target: whose cache, guidance and warpers it takes.
        warp: other warpers; None: the target's.
    """

    def __init__(
        self,
        decoder: Decoder,
        target: GuidedDecoder,
        warp: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        setting = target.again()[1]
        super().__init__(decoder, setting if warp is None else setting._replace(warp=warp))
        self.target = target
        self._told: list[int] | None = None  # the rows that the network was told to run

    def _narrow(self, rows: Sequence[int] | None = None) -> None:
        super()._narrow(rows)
        self._told = self.running.numbers

    def start(self, rows: int) -> None:
        """Take over what the target has just read, which starts first where it has not yet."""
        if self.target.cache is None:
            self.target.start(rows)
        self.cache, self.hidden = self.target.cache, self.target.hidden
        self.running, self.reach = self.target.running, self.target.reach
        self.ranked = self.target.ranked
        self._narrow()

    def seat(self, context: Context, rows: list[int]) -> None:
        """Take over what the target has just read."""
        self._sit(context.samples or [])
        self._narrow()
        self.hidden = self.target.hidden

    def leave(self, finished: Sequence[bool]) -> None:
        """Keep all rows: they leave with the target's, and a round within a round ends none."""

    def watch(self, reads: tuple[int, ...] = (), prefix: int = 0) -> None:
        self.target.watch(reads, prefix)  # of the prefix, it alone has hidden states
        super().watch(reads)

    def extend(
        self, tokens: Tensor, start: list[int], draft: Draft | None = None, use: LayersOfRows = None
    ) -> Tensor:
        assert self.cache is not None, "start() comes first"
        if self.running.numbers is not self._told:
            self._narrow()
        before, self.cache.contained = self.cache.contained, True  # its faults are not the target's
        try:
            return super().extend(tokens, start, draft, use)
        finally:
            self.cache.contained = before
