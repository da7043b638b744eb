"""SpecPC's choice of visual tokens: those that a draft model's question attends to.

Galim et al. 2025 keep the prompt tokens that a small model attends to when it reads the end of the
prompt. Of a prompt with pictures, text is kept here, and pictures lose columns. A kept token brings
its neighbours on the grid; the published code, for text, brings the nearest 32 in the line.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InputError
from .base import Compressed, check, take, top, wide

QUESTION = 64  # tokens at the prompt's end that ask, at most, as published
SEEN = 3  # rows and columns around a token that its score counts for


def draft_attention(
    features: Tensor, keep: int, attention: Tensor, grid: tuple[int, int] | None = None
) -> Compressed:
    """The `keep` tokens with the most attention around them, untouched.

    Args:
        features: `[B, N, C]`.
        keep: tokens K that stay.
        attention: `[B, N]`, of the visual tokens, see `question_attention`.
        grid: rows and columns of the tokens; None: a square, or of a number that is none a line.

    Raises:
        InputError: the inputs don't fit each other.
    """
    check(features, keep, attention)
    shape = grid_of(attention.shape[1], grid)
    around = wide(attention).unflatten(1, shape)[:, None]
    around = F.max_pool2d(around, SEEN, stride=1, padding=SEEN // 2).flatten(1)
    # of neighbours that share a score, the one that is looked at itself comes first
    index = top(around + wide(attention) * 1e-3, keep)
    return Compressed.full(take(features, index), index)


def question_attention(weights: Tensor, asked: Tensor) -> Tensor:
    """Most attention that every token gets from a question, `[B, T]`.

    A question's last token counts fully, and those in front of it less and less, the first of them
    least: `1 / q` of q tokens.

    Args:
        weights: `[B, H, T, T]`, attention weights of one layer.
        asked: `[B, T]`, True for the tokens of the question.
    """
    behind = asked.long().cumsum(1)
    share = (behind / behind[:, -1:].clamp_min(1)).where(asked, 0.0).to(weights.dtype)
    first = int(asked.any(0).long().argmax())  # no token in front of it asks anything
    return (weights[:, :, first:] * share[:, None, first:, None]).amax((1, 2))


def grid_of(tokens: int, grid: tuple[int, int] | None) -> tuple[int, int]:
    """Rows and columns of visual tokens."""
    side = math.isqrt(tokens)
    return grid or ((side, side) if side * side == tokens else (1, tokens))


def on_grid(attention: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Scores `[B, N]` of one grid on another, `[B, N']`, as a picture is scaled.

    Raises:
        InputError: tokens of one stand on no grid, but in a line.
    """
    if old == new:
        return attention
    if 1 in (old[0], new[0]):
        raise InputError(
            f"the draft model's {old[0] * old[1]} tokens of a picture and the model's "
            f"{new[0] * new[1]} stand on no grids that fit each other"
        )
    scaled = F.interpolate(
        wide(attention).unflatten(1, old)[:, None], new, mode="bilinear", align_corners=False
    )
    return torch.flatten(scaled, 1)
