"""Rows of a batch that still run: those that are over cost nothing more."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LayersOfRows = Sequence[Sequence[int]] | None
"""By row, the layers that run; None: all of them in every row."""
RUNNING = 7 / 8  # of the rows that ran: if more still do, those that are over run along


class RunningRows:
    """Samples that still run, of a network with one row or more for each.

    Row b of B samples is row b of the network, its copies are rows B + b and so on. What has a row
    for each is `[R, …]`, what is of those that run `[R', …]`.

    Args:
        samples: B.
        copies: rows of the network for each.
        device: where tensors are.

    Attributes:
        left: the samples, by number.
        numbers: of the network's rows that run; None: all of them.
    """

    numbers: list[int] | None = None

    def __init__(self, samples: int, copies: int, device: torch.device) -> None:
        self._samples, self._copies, self._device = samples, copies, device
        self.left: list[int] = [*range(samples)]
        self._index = torch.zeros(0)

    def leave(self, finished: Sequence[bool]) -> list[int] | None:
        """Let samples that are over go, if they are so many that it pays.

        Returns:
            The rows that go on, as numbered among those that ran; None: nothing has changed.
        """
        before, left = self.left, [sample for sample in self.left if not finished[sample]]
        if not left or len(left) == len(before) or len(left) > RUNNING * len(before):
            return None
        places = [place for place, sample in enumerate(before) if not finished[sample]]
        copies = range(self._copies)
        self.left = left
        self.numbers = [copy * self._samples + sample for copy in copies for sample in left]
        self._index = torch.tensor(self.numbers, device=self._device)
        return [copy * len(before) + place for copy in copies for place in places]

    def of(self, x: Tensor) -> Tensor:
        """Entries `[R', …]` of the rows that run, of `[R, …]`."""
        return x if self.numbers is None else x[self._index]

    def of_all(self, out: Tensor) -> Tensor:
        """Entries `[R, …]` of all rows, with zeros for those that run no more, of `[R', …]`."""
        if self.numbers is None:
            return out
        rows = self._samples * self._copies
        return out.new_zeros(rows, *out.shape[1:]).index_copy_(0, self._index, out)

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
                out.append(runs.repeat(self._copies)[:, None, None])
        return out
