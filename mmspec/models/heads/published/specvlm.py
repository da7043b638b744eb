"""SpecVLM (Huang et al. 2025): EAGLE-1's layers, and a compressor that the question chooses for.

A gate reads the question and weighs the compressor's branches: one is drawn by Gumbel-softmax in
training and the likeliest taken at inference (Huang et al. 2025, section 3.2). Or all are added up
by their weights, or one is always taken.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....methods.parts.heads import BRANCHES, CHOICES, Branch
from ..columns import Columns, Images, Look
from .eagle1 import EagleNetwork
from .sizes import HeadSizes
from .vispec import ImageAdapter


class SpecVlmNetwork(EagleNetwork):
    """The network; arguments as of `EagleNetwork`.

    Args:
        factor: columns of a picture that pruning, pooling and convolution make one of.
        queries: columns that the resampler leaves of it.
        gate_dim: width of the gate.
        choose: "gate": one branch a row, "sum": all by their weights, or the name of one; "whole":
            pictures are read as they are, as by EAGLE's head.

    Attributes:
        choose: may be set at any time.
        saved: the choice that it was made with.
        temperature: of the Gumbel-softmax.
    """

    temperature = 1.0

    def __init__(
        self,
        sizes: HeadSizes,
        vocab_size: int | None,
        layers: int = 1,
        bias: bool = True,
        factor: int = 4,
        queries: int = 2,
        gate_dim: int = 64,
        choose: str = "gate",
    ) -> None:
        if choose not in CHOICES:
            raise ValueError(f"choose must be one of {', '.join(CHOICES)}, not {choose!r}")
        super().__init__(sizes, vocab_size, layers, bias)
        self.choose = self.saved = choose
        resampler = ImageAdapter(sizes, queries, bias=False)
        self.compressor = ElasticCompressor(sizes.hidden_size, factor, queries, resampler)
        gate = nn.Linear(sizes.hidden_size, gate_dim), nn.SiLU(), nn.Linear(gate_dim, len(BRANCHES))
        self.gate = nn.Sequential(*gate)

    def look(self, columns: Columns) -> Look:
        images, mask = columns.images, columns.mask
        if images is None or self.choose == "whole":
            return Look()
        visual = images.visual(mask)
        question = asked(columns, visual)
        choice = self.weights(question)  # [R, branches]
        both = torch.cat([columns.embedded, columns.before], dim=-1)
        x, embedded = self.fc(images.picked(both)), images.picked(columns.embedded)
        total, keep = torch.zeros_like(x), torch.zeros_like(images.real())
        for n, branch in enumerate(BRANCHES):
            if self.choose in BRANCHES and branch != self.choose:
                continue
            values, positions = self.compressor(branch, x, embedded, question[images.row], images)
            weight = choice[images.row, n, None]
            total = total + weight[..., None] * values
            keep = keep | (positions & (weight > 0))
        nothing = torch.zeros_like(columns.embedded)
        return Look(images.put(keep, mask), images.put(total, nothing), choice=choice)

    def weights(self, question: Tensor) -> Tensor:
        """Weights `[R, branches]` for questions `[R, D]`: of one branch, or of all."""
        logits: Tensor = self.gate(question)
        if self.choose == "sum":
            return logits.softmax(-1)
        if self.choose == "gate" and self.training:
            return F.gumbel_softmax(logits, self.temperature, hard=True)
        chosen = logits.argmax(-1)
        if self.choose != "gate":
            chosen = torch.full_like(chosen, BRANCHES.index(self.choose))
        return F.one_hot(chosen, len(BRANCHES)).to(logits)


def asked(columns: Columns, visual: Tensor) -> Tensor:
    """The question as one vector: mean `[R, D]` of the prompt's normed text."""
    text = (columns.asked & ~visual)[..., None]
    normed = F.rms_norm(columns.embedded, columns.embedded.shape[-1:])
    return (normed * text).sum(1) / text.sum(1).clamp_min(1)


class ElasticCompressor(nn.Module):
    """Five ways to shorten the pictures of a batch (Huang et al. 2025, section 3.2).

    What is compressed are the inputs that the layer would have read, `fc([e; h])` at the pictures'
    columns. What stays of a picture stands in its own columns if it was chosen among them, and in
    its last ones if it was made of several.

    Args:
        dim: width D.
        factor: columns that pruning, pooling and convolution make one of.
        queries: columns that the resampler leaves.
        resampler: makes them `[M, queries, D]` of pictures `[M, P, D]`, real where `[M, P]`.
    """

    def __init__(self, dim: int, factor: int, queries: int, resampler: nn.Module) -> None:
        super().__init__()
        self.factor, self.queries = factor, queries
        self.score = nn.Linear(dim, dim, bias=False)
        self.taps = nn.Parameter(torch.full((factor, dim), 1 / factor))
        self.mix = nn.Linear(dim, dim, bias=False)
        self.resampler = resampler

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
            return images.at_end(self.resampler(x, images.real()), self.queries)
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
    """Count of the columns that are left of every picture `[M]`."""
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
