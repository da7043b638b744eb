"""Layout of a picture's tokens: codes row by row, and tokens that the layout forces.

Some families end every row with a token of its own and close the picture with a few more (Emu3,
Wang et al. 2024, section 2.1; Lumina-mGPT, Liu et al. 2024, section 3.1). Which token stands there
follows from the position alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..errors import InputError


@dataclass(frozen=True)
class TokenGrid:
    """A grid of codes in raster order.

    Attributes:
        rows, columns: of codes.
        end_of_row: token behind every row; None: the next row follows at once.
        tail: tokens behind the last row.
    """

    rows: int
    columns: int
    end_of_row: int | None = None
    tail: tuple[int, ...] = ()

    @property
    def stride(self) -> int:
        """Positions from a code to the one below it."""
        return self.columns + (self.end_of_row is not None)

    @property
    def length(self) -> int:
        """Tokens of the whole picture L, forced ones included."""
        return self.rows * self.stride + len(self.tail)

    @property
    def free(self) -> bool:
        """True if no token is forced."""
        return self.end_of_row is None and not self.tail

    @cached_property
    def forced(self) -> Tensor:
        """The token that every position must have, `[L]`; -1 where a code stands."""
        out = torch.full((self.length,), -1)
        if self.end_of_row is not None:
            out[self.columns : self.rows * self.stride : self.stride] = self.end_of_row
        out[self.rows * self.stride :] = torch.tensor(self.tail, dtype=torch.long)
        return out

    def codes(self, tokens: Tensor) -> Tensor:
        """The codes `[B, rows · columns]` among the tokens `[B, L]` of whole pictures."""
        lines = tokens[:, : self.rows * self.stride].unflatten(1, (self.rows, self.stride))
        return lines[..., : self.columns].flatten(1)

    def tokens(self, codes: Tensor) -> Tensor:
        """The tokens `[B, L]` of pictures with the given codes `[B, rows · columns]`."""
        out = self.forced.to(codes.device).repeat(len(codes), 1)
        out[:, self.forced < 0] = codes
        return out

    def latents(self, codes: Tensor, codebook: Tensor) -> Tensor:
        """The vectors `[B, C, rows, columns]` of the codes `[B, rows · columns]`."""
        return codebook[codes].unflatten(1, (self.rows, self.columns)).movedim(-1, 1)


def fixed_grid(asked: tuple[int, int], drawn: tuple[int, int], side: int) -> TokenGrid:
    """The grid of `side × side` codes of a model that draws pictures of one size.

    Raises:
        InputError: another height and width are asked for than those drawn.
    """
    if asked != drawn:
        wanted, other = ("×".join(map(str, size)) for size in (drawn, asked))
        raise InputError(f"this model draws {wanted} px, not {other}")
    return TokenGrid(side, side)


def check_multiples(height: int, width: int, factor: int) -> None:
    """Raise an `InputError` unless both sides in pixels are multiples of `factor`."""
    if height % factor or width % factor or min(height, width) < factor:
        raise InputError(
            f"this model draws sides that are multiples of {factor} px, not {height}×{width}"
        )
