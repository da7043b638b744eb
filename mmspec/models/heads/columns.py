"""The columns that a draft head reads: text and pictures, and which of them it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Images:
    """Places of M pictures among the columns of R rows, P columns at most each.

    Attributes:
        spans: of every row, in order, the first column of every picture and how many it has.
        sizes: columns of every picture, on the host.
        row: the row of every picture `[M]`.
        place: what `picked` and `put` move, N columns in all: their row, their column, their
            picture and their place in it, `[4, N]`.
        ends: the column behind every picture `[M]`.
    """

    spans: Sequence[Sequence[tuple[int, int]]]
    sizes: list[int]
    row: Tensor
    place: Tensor
    ends: Tensor

    @classmethod
    def of(
        cls, spans: Sequence[Sequence[tuple[int, int]]], device: torch.device | str = "cpu"
    ) -> Images | None:
        """Pictures at each row's spans (first column, columns), in order; None: there are none."""
        found = [(row, *span) for row, own in enumerate(spans) for span in own]
        if not found:
            return None
        place = [
            (row, first + n, image, n)
            for image, (row, first, columns) in enumerate(found)
            for n in range(columns)
        ]
        return cls(
            spans,
            [columns for _, _, columns in found],
            torch.tensor([row for row, _, _ in found], device=device),
            torch.tensor(place, device=device).T,
            torch.tensor([first + columns for _, first, columns in found], device=device),
        )

    def of_rows(self, rows: Sequence[int]) -> Images | None:
        """The pictures of these rows, numbered as they are here; None: they have none."""
        return Images.of([self.spans[row] for row in rows], self.row.device)

    @property
    def width(self) -> int:
        """P, the columns of the largest."""
        return max(self.sizes)

    def counts(self) -> Tensor:
        """Columns of every picture `[M]`."""
        return torch.tensor(self.sizes, device=self.row.device)

    def real(self) -> Tensor:
        """`[M, P]`, False behind a picture's end."""
        return torch.arange(self.width, device=self.row.device) < self.counts()[:, None]

    def visual(self, mask: Tensor) -> Tensor:
        """True at the columns of pictures, shaped like `mask [R, S]`."""
        out = torch.zeros_like(mask)
        out[self.place[0], self.place[1]] = True
        return out

    def picked(self, x: Tensor) -> Tensor:
        """The pictures' columns `[M, P, D]` of `x [R, S, D]`; zero behind their ends."""
        row, column, image, n = self.place
        out = x.new_zeros(len(self.sizes), self.width, x.shape[-1])
        out[image, n] = x[row, column]
        return out

    def put(self, values: Tensor, onto: Tensor) -> Tensor:
        """`onto [R, S, …]` with the pictures' columns from `values [M, P, …]`."""
        row, column, image, n = self.place
        out = onto.clone()
        out[row, column] = values[image, n].to(out.dtype)  # autocast may have made them less
        return out

    def at_end(self, values: Tensor, counts: Tensor | int) -> tuple[Tensor, Tensor]:
        """The first `counts` of `values [M, n, D]` in every picture's last columns, in order.

        A picture of fewer columns takes the last ones. Returns what is put `[M, P, D]`, zero
        elsewhere, and where `[M, P]`.
        """
        first = self.counts() - counts
        index = torch.arange(self.width, device=values.device) - first[:, None]
        keep = (index >= 0) & self.real()
        index = index.clamp(0, values.shape[1] - 1)[..., None].expand(-1, -1, values.shape[-1])
        return values.gather(1, index) * keep[..., None], keep

    def latest(self, mask: Tensor) -> Tensor:
        """The picture that ended last in front of each column, -1 for none, `[R, S + 1]`.

        The last of the columns stands for whatever comes behind.
        """
        rows, length = mask.shape
        marks = torch.full((rows, length + 1), -1, device=mask.device)
        marks[self.row, self.ends] = torch.arange(len(self.sizes), device=mask.device)
        return marks.cummax(1).values  # a row's pictures are numbered in order


@dataclass
class Columns:
    """Columns of prompt and answer, before a head makes its own inputs of them.

    Attributes:
        embedded: the target's inputs `[R, S, D]`, pictures included.
        before: its hidden states in front of them, behind the last norm `[R, S, D]`; zero where
            there is none, or where nobody knows it yet.
        mask: `[R, S]`, False where padded.
        asked: `[R, S]`, columns of the prompt.
        images: where its pictures are.
    """

    embedded: Tensor
    before: Tensor
    mask: Tensor
    asked: Tensor
    images: Images | None = None

    def positions(self) -> Tensor:
        """`[R, S]`, from 0 at a row's first real column."""
        return positions(self.mask)

    def last_asked(self) -> Tensor:
        """The last column of each prompt `[R, 1]`."""
        place = torch.arange(self.mask.shape[1], device=self.mask.device)
        return (self.asked * place).amax(1, keepdim=True)


@dataclass
class Look:
    """A head's compression of the pictures.

    Attributes:
        keep: columns `[R, S]` that it reads; None: all that are real.
        values: inputs `[R, S, D]` that stand in the pictures' columns; None: they are joined as
            text is.
        context: vectors `[R, S + 1, D]` that go into the inputs of text, those of what comes behind
            last; None: nothing does.
        choice: the weights `[R, branches]` of a compressor that chooses.
    """

    keep: Tensor | None = None
    values: Tensor | None = None
    context: Tensor | None = None
    choice: Tensor | None = None


def positions(mask: Tensor) -> Tensor:
    """Places `[R, S]` of columns in their row, from 0 at the first that is real in `mask`."""
    return (mask.long().cumsum(1) - 1).clamp_min(0)


def kept_columns(keep: Tensor) -> tuple[Tensor, Tensor]:
    """The columns of `keep [R, S]` in order, padded on the left: which, and which are real.

    Both are `[R, S']`, S' the most that any row keeps.
    """
    width = int(keep.sum(1).max())
    order = keep.long().argsort(dim=1, stable=True)[:, keep.shape[1] - width :]
    return order, keep.gather(1, order)


def kept(columns: Columns, look: Look) -> Tensor:
    """True at the columns that are read `[R, S]`: the prompt's last is, for drafts begin there."""
    if look.keep is None:
        return columns.mask
    return (look.keep & columns.mask).scatter(1, columns.last_asked(), True)
