"""Inputs of one generation of pictures, the same for the target and for what drafts for it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...engine.warp import Warp
from ...models.token_grid import TokenGrid


@dataclass(frozen=True)
class Drawing:
    """Inputs of one generation, for any network that takes part in it.

    Attributes:
        condition, mask: what the prompts say `[R, T, …]`, see `ImageModel.condition`.
        scale: guidance; None: no unconditional rows.
        warp: the warpers.
        grid: the picture's tokens.
        seeds: of the rows.
        uncaptioned: the unconditional rows are told what each network learned as "no caption".
    """

    condition: Tensor
    mask: Tensor
    scale: float | None
    warp: Warp
    grid: TokenGrid
    seeds: list[int]
    uncaptioned: bool = False
