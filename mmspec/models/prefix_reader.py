"""Reads what stands in front of a generation's output into a cache."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from ..engine.cache import KVCache
from .call_masks import additive, prefix_mask
from .prefill import chunks, read_together
from .reach import Reach
from .setting import Setting

if TYPE_CHECKING:
    from .decoders import Decoder
    from .running_rows import RunningRows


class PrefixReader:
    """Calls of a network that read prefixes; attributes see `GuidedDecoder`."""

    cache: KVCache | None
    copies: int
    decoder: Decoder
    groups: Tensor
    grouped: bool
    hidden: Tensor | None
    keys: Tensor
    offset: int
    padded: bool
    pads: Tensor
    prefix: Tensor
    prefix_states: int
    reach: Reach
    rotary: Tensor
    running: RunningRows
    setting: Setting

    @abstractmethod
    def _narrow(self, rows: Sequence[int] | None = None) -> None:
        """Let the network run these rows alone; None: the `running` ones."""

    def _read_all(self, known: int) -> None:
        """Read the prefixes of all rows, behind the `known` columns."""
        # under guidance a row's copies lie apart
        parts = read_together(self.pads.clamp_min(known), self.offset)
        for lines in parts if self.copies == 1 else [slice(None)]:
            self._prefill(lines, max(known, int(self.pads[lines].min())), known)
        self._narrow()

    def _read_rows(self, rows: list[int]) -> None:
        """Read these rows' prefixes, each from its first real column on."""
        assert self.cache is not None
        self.hidden = None
        for row, lines in ((row, self.running.lines(row)) for row in rows):
            self.cache.lines(lines).restart()
            self.reach.ends[row] = self.offset
            self._prefill(lines, int(self.pads[lines].min()))
        self._narrow()

    def _prefill(self, lines: slice, first: int, known: int = 0) -> None:
        """Read some rows' prefix from column `first` on; in no row the `known` ones are read."""
        assert self.cache is not None
        self._narrow(range(self.running.rows)[lines])
        # of groups the last column is read too, and by a call once more
        length, cache = self.offset - (not self.grouped), self.cache.lines(lines)
        x, groups = self._prefilled(length)[lines], self.groups[lines, :length]
        since = max(known, (last := self.offset - 1) - self.prefix_states)  # states are left
        told = self.setting.prefill_chunk, groups if self.grouped else None
        for begin, end in chunks(first, length, *told):
            allowed = self.keys[:end] <= self.keys[begin:end, None]
            if self.padded or self.grouped:
                allowed = prefix_mask(allowed, self.pads[lines], groups[:, :end])
            where = self.rotary[begin:end], cache, begin, end, additive(allowed, x.dtype)
            out = self.decoder.forward(x[:, begin:end], *where, False)
            if (at := max(begin, since)) < (to := min(end, last)):
                states = self.decoder.states(out)[:, at - begin : to - begin]
                if self.hidden is None:
                    self.hidden = states.new_zeros(len(self.prefix), last - since, states.shape[-1])
                self.hidden[lines, at - since : to - since] = states

    def _prefilled(self, length: int) -> Tensor:
        """Inputs `[R, length, D]` of the prefix's first columns."""
        return self.prefix[:, :length]
