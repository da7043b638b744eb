"""Key/value storage of a transformer, with commit, rollback and branch gather."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor


class StaticCache:
    """Keys and values of every layer in one tensor of fixed size.

    `data` is `[layers, 2, R, heads, slots, head_dim]`; a row's slots `0 .. length` hold its
    committed tokens and later ones are scratch. There is nothing to do for a commit of a chain or
    for a rollback: the next write starts at the new length and attention never reads past what it
    is told to. Conditional and unconditional rows of one sample are two rows here.

    Attributes:
        contained: entries without numbers are stored as zeros. A mask alone does not hide them: its
            weight of 0 times NaN is NaN, so that one branch of a tree would spoil the others.
        room: slots behind a round's first one that calls may write and take back; None: any.
    """

    contained = False
    room: int | None = None

    def __init__(
        self,
        layers: int,
        rows: int,
        heads: int,
        slots: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.data = torch.zeros(layers, 2, rows, heads, slots, head_dim, dtype=dtype, device=device)
        self._rows = torch.arange(rows, device=device)[:, None]
        self._all = self.data, self._rows

    @property
    def slots(self) -> int:
        """Capacity in tokens per row."""
        return self.data.shape[4]

    @property
    def nbytes(self) -> int:
        """Bytes of its tensor."""
        return self.data.nbytes

    def write(self, layer: int, new: Tensor, slots: int | Tensor) -> None:
        """Store new keys and values `[2, R, heads, N, head_dim]` of one layer.

        Args:
            slots: the first slot, when all rows write to the same N slots in a row; or the slot of
                every new token, `[R, N]`.
        """
        if self.contained:
            new = new.nan_to_num(0.0, 0.0, 0.0)
        if isinstance(slots, int):
            self.data[layer, :, :, :, slots : slots + new.shape[3]] = new
        else:
            # advanced indices around a slice come first: [R, N, 2, heads, head_dim]
            self.data[layer][:, self._rows, :, slots] = new.permute(1, 3, 0, 2, 4)

    def read(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values `[R, heads, length, head_dim]` of one layer."""
        keys, values = self.data[layer, :, :, :, :length].unbind()
        return keys, values

    def update(
        self, layer: int, new: Tensor, slots: int | Tensor, length: int
    ) -> tuple[Tensor, Tensor]:
        """Store, see `write`, and read, see `read`, in the call that brings `new`."""
        self.write(layer, new, slots)
        return self.read(layer, length)

    def gather(self, source: Tensor, target: Tensor) -> None:
        """Move entries between slots in all layers: a kept branch of a tree becomes a chain.

        Args:
            source, target: slots `[R, K]`; what a row does not move it maps onto itself.
        """
        kept = self.data[:, :, self._rows, :, source]  # [R, K, layers, 2, heads, head_dim]
        self.data[:, :, self._rows, :, target] = kept

    def span(self, layer: int, first: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values `[R, heads, n, head_dim]` of the slots from `first` to in front of `end`.

        A layer with a window gives no more than what a token at `end` sees of them.
        """
        keys, values = self.read(layer, end)
        return keys[:, :, first:], values[:, :, first:]

    def begin_at(self, first: int, end: int) -> None:
        """Notice that it was filled up to `end`, layers with a window from `first` on alone."""

    def knows(self, count: int) -> int:
        """Tell how many of its first `count` slots a text can go on from: all of them, or none."""
        return count

    def take(self, other: KVCache, count: int) -> None:
        """Copy the first `count` slots of a cache of the same layers and rows."""
        assert isinstance(other, StaticCache)
        self.data[..., :count, :] = other.data[..., :count, :]

    def select(self, rows: Sequence[int], length: int) -> None:
        """Keep the given rows, in ascending order, with their first `length` slots.

        They move up to the front; the memory of the others is not given back, see `restore`.
        """
        for place, row in enumerate(rows):
            if place != row:
                self.data[:, :, place, :, :length] = self.data[:, :, row, :, :length]
        self.data, self._rows = self.data[:, :, : len(rows)], self._rows[: len(rows)]

    def restore(self) -> None:
        """Have all rows again; they hold nothing that counts."""
        self.data, self._rows = self._all

    def restart(self) -> None:
        """Notice that its rows, see `lines`, hold nothing that counts any more."""

    @contextmanager
    def lent(self, first: int, count: int) -> Iterator[None]:
        """Lend `count` slots from `first` on, that nobody needs, to calls that do not count."""
        yield

    def lines(self, rows: slice) -> StaticCache:
        """A cache of these rows alone, in the same memory."""
        view = copy.copy(self)
        view.data = self.data[:, :, rows]
        view._rows = self._rows[: view.data.shape[2]]
        return view


class SpreadCache:
    """A cache whose layers differ in device or shape: a `StaticCache` for those of each kind.

    Keys, values and slots of a layer are given, and read, on that layer's device. What is about all
    layers (`gather`, `select`) may come from any.

    Args:
        parts: of equal rows; of equal slots, but for windows.
        layers: the part of every layer; None: they count on from part to part.

    Attributes:
        placed: every layer's part, and its number there.
    """

    def __init__(self, parts: Sequence[StaticCache], layers: Sequence[int] | None = None) -> None:
        self.parts = list(parts)
        if layers is None:
            layers = [n for n, part in enumerate(parts) for _ in range(len(part.data))]
        self.placed = [
            (self.parts[part], list(layers[:layer]).count(part))
            for layer, part in enumerate(layers)
        ]

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.placed)

    @property
    def slots(self) -> int:
        """Capacity in tokens per row."""
        return max(part.slots for part in self.parts)

    @property
    def contained(self) -> bool:
        return all(part.contained for part in self.parts)

    @contained.setter
    def contained(self, value: bool) -> None:
        for part in self.parts:
            part.contained = value

    @property
    def room(self) -> int | None:
        """The least of its parts."""
        return min((part.room for part in self.parts if part.room is not None), default=None)

    @property
    def nbytes(self) -> int:
        """Bytes on all devices."""
        return sum(part.nbytes for part in self.parts)

    def write(self, layer: int, new: Tensor, slots: int | Tensor) -> None:
        part, n = self.placed[layer]
        part.write(n, new, slots)

    def read(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        part, n = self.placed[layer]
        return part.read(n, length)

    def update(
        self, layer: int, new: Tensor, slots: int | Tensor, length: int
    ) -> tuple[Tensor, Tensor]:
        part, n = self.placed[layer]
        return part.update(n, new, slots, length)

    def span(self, layer: int, first: int, end: int) -> tuple[Tensor, Tensor]:
        part, n = self.placed[layer]
        return part.span(n, first, end)

    def begin_at(self, first: int, end: int) -> None:
        for part in self.parts:
            part.begin_at(first, end)

    def knows(self, count: int) -> int:
        return min(part.knows(count) for part in self.parts)

    def gather(self, source: Tensor, target: Tensor) -> None:
        for part in self.parts:
            part.gather(source.to(part.data.device), target.to(part.data.device))

    def take(self, other: KVCache, count: int) -> None:
        assert isinstance(other, SpreadCache)
        for part, theirs in zip(self.parts, other.parts, strict=True):
            part.take(theirs, count)

    def select(self, rows: Sequence[int], length: int) -> None:
        for part in self.parts:
            part.select(rows, length)

    def restore(self) -> None:
        for part in self.parts:
            part.restore()

    def restart(self) -> None:
        for part in self.parts:
            part.restart()

    @contextmanager
    def lent(self, first: int, count: int) -> Iterator[None]:
        with ExitStack() as stack:
            for part in self.parts:
                stack.enter_context(part.lent(first, count))
            yield

    def lines(self, rows: slice) -> SpreadCache:
        view = copy.copy(self)
        view.parts = [part.lines(rows) for part in self.parts]
        # layers know their part by its number, see `placed`
        numbers = {id(part): n for n, part in enumerate(self.parts)}
        view.placed = [(view.parts[numbers[id(part)]], n) for part, n in self.placed]
        return view


KVCache = StaticCache | SpreadCache
