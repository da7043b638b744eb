"""A cache of layers with a sliding window: a ring of slots, however long the text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .cache import KVCache, StaticCache


class RingCache(StaticCache):
    """Keys and values of layers that read no entry as far back as their window.

    Slot s of a row lies in place s mod M, of M = the window and the room. Commit, rollback and the
    gather of a branch are those of `StaticCache`, on slots. A call whose last slot lies at most
    `room` slots behind its round's first one overwrites nothing that this round, or one behind it,
    still sees. What a place seems to hold and does not (of a draft that was rolled back) is as far
    back as the window: the caller's mask hides it, as it hides what is.

    A call of more tokens than there is room for, such as a prefill, reads what it brings beside
    what there is, before that is overwritten.

    Args:
        layers, rows, heads, slots, head_dim, dtype, device: see `StaticCache`.
        window: entries that a layer reads, its own included.
        room: slots behind a round's first one that calls write and may take back.

    Attributes:
        reached: slots in front of this one may have been written.
        begun: slots in front of this one were never here.
    """

    def __init__(
        self,
        layers: int,
        rows: int,
        heads: int,
        slots: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        window: int = 1,
        room: int = 0,
    ) -> None:
        places = min(slots, window + room)
        super().__init__(layers, rows, heads, places, head_dim, dtype, device)
        self.window, self._beside, self.room = window, room, room
        self.reached = self.begun = 0

    def begin_call(self, slots: int | Tensor, count: int, length: int) -> Tensor | None:
        """Notice a call that brings `count` entries a row, see `update`: the slots that it reads.

        Returns:
            In the order of what `update` gives `[R or 1, K]`, below 0 where there is none; None:
            the first `length`.
        """
        self.reached = max(self.reached, length)
        if length <= self.slots or self._all_new(slots, count):
            return None
        places = torch.arange(self.slots, device=self.data.device)
        first = slots if isinstance(slots, Tensor) else places.new_tensor([[slots]])
        if count <= self._beside + 1:
            last = first.amax(1, keepdim=True) if isinstance(slots, Tensor) else first + count - 1
            return last - (last - places) % self.slots
        last, own = first[:, :1] - 1, first
        if not isinstance(slots, Tensor):
            own = first + torch.arange(count, device=self.data.device)
        return torch.cat([last - (last - places) % self.slots, own], dim=1)

    def update(
        self, layer: int, new: Tensor, slots: int | Tensor, length: int
    ) -> tuple[Tensor, Tensor]:
        """Store keys and values `[2, R, heads, N, head_dim]`, and read as `begin_call` says.

        Args:
            slots: see `StaticCache.write`; of each row in ascending order.
            length: slots in front of this one count.
        """
        count = new.shape[3]
        if length <= self.slots or count <= self._beside + 1:
            self.write(layer, new, slots)
            return self.read(layer, length)
        if self.contained:
            new = new.nan_to_num(0.0, 0.0, 0.0)
        front = 0 if self._all_new(slots, count) else self.slots
        keys, values = torch.cat([self.data[layer, :, :, :, :front], new], dim=3)
        self.write(layer, new, slots)
        return keys, values

    def _all_new(self, slots: int | Tensor, count: int) -> bool:
        """Tell whether nothing stands in front of a call that is read as it comes."""
        return isinstance(slots, int) and slots == 0 and count > self._beside + 1

    def write(self, layer: int, new: Tensor, slots: int | Tensor) -> None:
        last = min(new.shape[3], self.slots)
        beyond, new = new.shape[3] - last, new[:, :, :, new.shape[3] - last :]
        if isinstance(slots, Tensor):
            super().write(layer, new, slots[:, beyond:] % self.slots)
            return
        first = (slots + beyond) % self.slots
        front = min(last, self.slots - first)
        super().write(layer, new[:, :, :, :front], first)
        if front < last:
            super().write(layer, new[:, :, :, front:], 0)

    def read(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """Read all places, or the first `length` of them if there are more."""
        return super().read(layer, min(length, self.slots))

    def gather(self, source: Tensor, target: Tensor) -> None:
        super().gather(source % self.slots, target % self.slots)

    def span(self, layer: int, first: int, end: int) -> tuple[Tensor, Tensor]:
        slots = torch.arange(max(first, end - self.window + 1), end, device=self.data.device)
        keys, values = self.data[layer][..., slots % self.slots, :]
        return keys, values

    def begin_at(self, first: int, end: int) -> None:
        self.begun, self.reached = first, end

    def knows(self, count: int) -> int:
        since = max(self.begun, self.reached - self.slots)
        return count if since <= max(0, count - self.window + 1) else 0

    def take(self, other: KVCache, count: int) -> None:
        assert isinstance(other, RingCache)
        first = max(0, other.begun, other.reached - other.slots, count - self.slots)
        slots = torch.arange(first, count, device=self.data.device)
        self.data[..., slots % self.slots, :] = other.data[..., slots % other.slots, :]
        self.begin_at(first, count)

    @contextmanager
    def lent(self, first: int, count: int) -> Iterator[None]:
        places = torch.arange(first, first + count, device=self.data.device) % self.slots
        held, known = self.data[..., places, :], (self.reached, self.begun)
        try:
            yield
        finally:
            self.data[..., places, :] = held
            self.reached, self.begun = known

    def restore(self) -> None:
        super().restore()
        self.restart()

    def restart(self) -> None:
        self.reached = self.begun = 0
