"""Rows of a batch that run: the samples in them, and those that are over and cost nothing more."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LayersOfRows = Sequence[Sequence[int]] | None
"""By row, the layers that run; None: all of them in every row."""
RUNNING = 7 / 8  # of the rows that ran: if more still do, those that are over run along


class RunningRows:
    """Samples that run, of a network with one row or more for each.

    Of N samples B have a row, the others wait for one. Row b is row b of the network, its copies
    are rows B + b and so on. What has an entry for each sample is `[S, …]`, ordered likewise; what
    has one for each row is `[R, …]`; what is of those that run is `[R', …]`.

    Args:
        samples: N.
        copies: rows of the network for each.
        device: where tensors are.
        at_once: B; None: all.

    Attributes:
        samples: those that have a row, by row.
        left: rows that run.
        numbers: of the network's rows that run; None: all of them.
    """

    numbers: list[int] | None = None

    def __init__(
        self, samples: int, copies: int, device: torch.device, at_once: int | None = None
    ) -> None:
        self._all, self.copies, self._device = samples, copies, device
        self.samples = [*range(min(samples, at_once or samples))]
        self.left = [*self.samples]
        self._index = torch.zeros(0)

    def __len__(self) -> int:
        return self.rows * self.copies  # R

    @property
    def rows(self) -> int:
        """B."""
        return len(self.samples)

    def seat(self, samples: Sequence[int]) -> None:
        """Let these samples have the rows; none has left."""
        assert self.numbers is None, "a row that has left takes no sample"
        self.samples = list(samples)

    def lines(self, row: int) -> slice:
        """Entries of what is `[R, …]` that are of a row."""
        return slice(row, None, self.rows)

    def entries(self, rows: Sequence[int]) -> list[int]:
        """Entries of what is `[R, …]` that are of these rows."""
        return [copy * self.rows + row for copy in range(self.copies) for row in rows]

    def places(self, rows: Sequence[int] | None = None) -> list[int] | None:
        """Entries of what is `[S, …]` that are of these rows, or of those that run.

        None: those are all entries.
        """
        held = [self.samples[row] for row in (self.left if rows is None else rows)]
        if held == [*range(self._all)]:
            return None
        return [copy * self._all + sample for copy in range(self.copies) for sample in held]

    def of_samples(self, x: Tensor) -> Tensor:
        """Entries `[R, …]` of the samples that have a row, of `[S, …]`."""
        places = self.places(range(self.rows))
        return x if places is None else x[places]

    def copied(self, x: Tensor) -> Tensor:
        """Entries `[R, …]` of what has one for each row, `[B, …]`, or for each copy already."""
        return x.repeat(self.copies, *[1] * (x.ndim - 1)) if len(x) < len(self) else x

    def leave(self, finished: Sequence[bool]) -> list[int] | None:
        """Let rows that are over go, if they are so many that it pays.

        Returns:
            The rows that go on, as numbered among those that ran; None: nothing has changed.
        """
        before, left = self.left, [row for row in self.left if not finished[row]]
        if not left or len(left) == len(before) or len(left) > RUNNING * len(before):
            return None
        places = [place for place, row in enumerate(before) if not finished[row]]
        copies = range(self.copies)
        self.left = left
        self.numbers = self.entries(left)
        self._index = torch.tensor(self.numbers, device=self._device)
        return [copy * len(before) + place for copy in copies for place in places]

    def of(self, x: Tensor) -> Tensor:
        """Entries `[R', …]` of the rows that run, of `[R, …]`."""
        return x if self.numbers is None else x[self._index]

    def of_all(self, out: Tensor) -> Tensor:
        """Entries `[R, …]` of all rows, with zeros for those that run no more, of `[R', …]`."""
        if self.numbers is None:
            return out
        return out.new_zeros(len(self), *out.shape[1:]).index_copy_(0, self._index, out)

    def layers(self, use: LayersOfRows, count: int) -> list[Tensor | bool] | None:
        """The argument `use` of `Decoder.forward` for all rows, of `count` layers."""
        if use is None:
            return None
        out: list[Tensor | bool] = []
        for layer in range(count):
            rows = [layer in chosen for chosen in use]
            if all(rows) or not any(rows):
                out.append(rows[0])
            else:
                runs = torch.tensor(rows, device=self._device)
                out.append(runs.repeat(self.copies)[:, None, None])
        return out
