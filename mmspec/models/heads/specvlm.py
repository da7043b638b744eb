"""SpecVLM's head: EAGLE's with an elastic compressor that the question chooses for.

A gate reads the question and weighs the compressor's branches: one is drawn by Gumbel-softmax in
training and the likeliest taken at inference (Huang et al. 2025, section 3.2). Or all are added up
by their weights, or one is always taken.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from ...methods.parts.heads import BRANCHES, CHOICES
from .columns import Columns, Look
from .feature import FeatureHead
from .published.specvlm import ElasticCompressor, asked
from .vispec import Resampler


class SpecVlmHead(FeatureHead):
    """Head that compresses pictures, by a branch that the question chooses; see `FeatureHead`.

    Args:
        factor: columns of a picture that pruning, pooling and convolution make one of.
        queries: columns that the resampler leaves of it.
        gate_dim: width of the gate.
        choose: "gate": one branch a row, "sum": all by their weights, or the name of one; "whole":
            pictures are read as they are, as by EAGLE's head.

    Attributes:
        choose: may be set at any time.
        temperature: of the Gumbel-softmax.
    """

    temperature = 1.0

    @register_to_config
    def __init__(
        self,
        target: dict[str, Any],
        sizes: dict[str, Any],
        factor: int = 4,
        queries: int = 2,
        gate_dim: int = 64,
        choose: str = "gate",
    ) -> None:
        if choose not in CHOICES:
            raise ValueError(f"choose must be one of {', '.join(CHOICES)}, not {choose!r}")
        super().__init__(target, sizes)
        self.choose = choose
        resampler = Resampler(self.dim, self.sizes.n_head, queries)
        self.compressor = ElasticCompressor(self.dim, factor, queries, resampler)
        self.gate = nn.Sequential(
            nn.Linear(self.dim, gate_dim), nn.SiLU(), nn.Linear(gate_dim, len(BRANCHES))
        )

    def init_weights(self, std: float = 0.02) -> None:
        """Initialize as EAGLE does; the convolution begins as the pooling."""
        super().init_weights(std)
        nn.init.eye_(self.compressor.mix.weight)

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
