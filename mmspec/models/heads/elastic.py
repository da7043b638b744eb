"""SpecVLM's elastic compressor: five ways to shorten a picture (Huang et al. 2025, section 3.2).

What is compressed are the inputs that a head's layer would have read, `fc([e; h])` at the picture's
columns. What stays of a picture stands in its own columns if it was chosen among them, and in its
last ones if it was made of several.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...methods.parts.heads import Branch
from .columns import Images
from .resampler import Resampler


class ElasticCompressor(nn.Module):
    """All branches over the pictures of a batch.

    Args:
        dim, heads: width D, and attention heads of the resampler.
        factor: columns that pruning, pooling and convolution make one of.
        queries: columns that the resampler leaves.
    """

    def __init__(self, dim: int, heads: int, factor: int, queries: int) -> None:
        super().__init__()
        self.factor = factor
        self.score = nn.Linear(dim, dim, bias=False)
        self.taps = nn.Parameter(torch.full((factor, dim), 1 / factor))
        self.mix = nn.Linear(dim, dim, bias=False)
        self.resampler = Resampler(dim, heads, queries)

    def forward(
        self, branch: Branch, x: Tensor, embedded: Tensor, question: Tensor, images: Images
    ) -> tuple[Tensor, Tensor]:
        """Columns that a branch leaves `[M, P, D]`, zero elsewhere, and where they stand `[M, P]`.

        Args:
            x: the layer's inputs at the pictures' columns `[M, P, D]`.
            embedded: the projected embeddings there; they decide what is pruned.
            question: of each picture's row `[M, D]`.
            images: where they lie.
        """
        if branch == "text-only":
            return torch.zeros_like(x), torch.zeros_like(images.real())
        if branch == "pruning":
            return self._pruned(x, embedded, question, images)
        if branch == "resampler":
            queries = len(self.resampler.queries)
            return images.at_end(self.resampler(x, images.real()), queries)
        grouped, real, counts = _grouped(x, images, self.factor)  # [M, G, factor, D]
        if branch == "pooling":
            made = grouped.sum(2) / real.sum(2).clamp_min(1)[..., None]
        else:
            made = self.mix((grouped * self.taps).sum(2))
        return images.at_end(made, counts)

    def _pruned(
        self, x: Tensor, embedded: Tensor, question: Tensor, images: Images
    ) -> tuple[Tensor, Tensor]:
        """The columns that the question asks for most."""
        normed = F.rms_norm(embedded, embedded.shape[-1:])
        score = (self.score(normed) @ question[..., None])[..., 0] / x.shape[-1] ** 0.5
        real = images.real()
        order = score.masked_fill(~real, -torch.inf).argsort(dim=1, descending=True, stable=True)
        rank = torch.empty_like(order).scatter_(
            1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
        )
        keep = (rank < _groups(images, self.factor)[:, None]) & real
        gate = score.sigmoid()
        passed = 1 + gate - gate.detach()  # 1, and yet the scores learn from what they let through
        return x * (passed * keep)[..., None], keep


def _groups(images: Images, factor: int) -> Tensor:
    """How many columns are left of every picture `[M]`."""
    counts = [len(windows(size, factor)) for size in images.sizes]
    return torch.tensor(counts, device=images.row.device)


def _grouped(x: Tensor, images: Images, factor: int) -> tuple[Tensor, Tensor, Tensor]:
    """Neighbours together: `[M, G, factor, D]`, which are real, and every picture's groups `[M]`.

    What is not real is zero.
    """
    tables = [windows(size, factor) for size in images.sizes]
    groups = max(map(len, tables))
    nothing = (-1,) * factor
    index = torch.tensor(
        [[*table, *[nothing] * (groups - len(table))] for table in tables], device=x.device
    )
    real = index >= 0
    picture = torch.arange(len(tables), device=x.device)[:, None, None]
    grouped = x[picture, index.clamp_min(0)] * real[..., None]
    return grouped, real, _groups(images, factor)


@lru_cache(maxsize=64)
def windows(columns: int, factor: int) -> tuple[tuple[int, ...], ...]:
    """The columns of a picture that are made one, row by row; -1 where a group lacks some.

    Squares of a square picture if both sides go into each other, or else runs.
    """
    side, step = math.isqrt(columns), math.isqrt(factor)
    if side * side == columns and step * step == factor and side % step == 0:
        corners = [(r, c) for r in range(0, side, step) for c in range(0, side, step)]
        return tuple(
            tuple((r + i) * side + c + j for i in range(step) for j in range(step))
            for r, c in corners
        )
    return tuple(
        tuple(c if c < columns else -1 for c in range(first, first + factor))
        for first in range(0, columns, factor)
    )
