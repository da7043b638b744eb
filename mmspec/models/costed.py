"""Costs of a cached decoder: seconds of its calls, and bytes of its cache."""

from __future__ import annotations

import math
import statistics
import time
from abc import abstractmethod
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ..engine.cache import KVCache
from .reach import most_back

if TYPE_CHECKING:
    from .decoders import Decoder
    from .running_rows import RunningRows


_FEW = 3  # timed calls whose median one slow call does not change


class Costed:
    """Measurements of a network that runs over a cache; attributes see `GuidedDecoder`."""

    returns = False
    entries = 1
    cache: KVCache | None
    decoder: Decoder
    layers: int
    limit: int
    offset: int
    prefix: Tensor
    running: RunningRows
    slots: int

    @abstractmethod
    def start(self, rows: int) -> None:
        """Read the prefix."""

    @abstractmethod
    def extend(self, tokens: Tensor, start: list[int]) -> Tensor:
        """Laws behind new tokens."""

    @abstractmethod
    def _clear(self) -> None:
        """Begin with an empty cache; all rows run."""

    def seconds_per_call(
        self, tokens: int = 1, repeats: int = 7, enough: float = math.inf
    ) -> float:
        """Median wall-clock of a call with `tokens` new tokens a row, in the output's last slots.

        They must be free: this is for before or after a generation. All rows run. The cache then
        holds what it held, for a next turn may go on from it. The tokens differ, as far as there
        are as many: one token would always choose the same sparse experts.

        Args:
            repeats: calls that are timed.
            enough: seconds after which three of them will do; slow calls differ less.
        """
        rows = self.running.rows
        if self.cache is None:
            self.start(rows)
        elif self.running.numbers is not None:
            self._clear()
        ids = len(self.decoder.embeddings) // 2 + 1  # at the end there may be stand-ins of pictures
        inputs = torch.arange(rows * tokens, device=self.prefix.device).view(rows, tokens)
        inputs = inputs * max(1, ids // inputs.numel()) % ids
        count = tokens * self.entries
        first = max(0, self.slots - self.offset - count)
        times: list[float] = []
        cache: KVCache | None = self.cache  # a head without layers has none
        with nullcontext() if cache is None else cache.lent(self.offset + first, count):
            while len(times) < repeats and (len(times) < _FEW or sum(times) < enough):
                started = time.perf_counter()
                self.extend(inputs, [first] * rows)[0, 0, 0].item()  # wait for the device
                times.append(time.perf_counter() - started)
        return statistics.median(times)

    def cache_bytes(self, scratch: int) -> int:
        """Bytes of its cache, if a call may add so many tokens; heads without layers have none."""
        if not self.layers:
            return 0
        rows = len(self.prefix)
        self.decoder.cache(1, 1)  # which may have to look at the network first
        slots = self.offset + self.limit + self.entries * scratch + 1
        with FakeTensorMode(allow_non_fake_inputs=True):  # nothing is allocated
            return self.decoder.cache(
                rows, slots, None if self.returns else most_back(scratch)
            ).nbytes
