"""Recipe of the image drafter: the target's guided law, distilled into a far cheaper transformer.

For the loss see `lessons`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...models.llamagen.transformer import LlamaGenTransformer
from ..card import ship, write_card
from ..trainer import TrainConfig
from .distillation_data import DistillationExample, LessonRecipe, distillation
from .target import TRANSFORMER

# 11.5 % of the target's matrices; two layers learn more than one of the target's width
DRAFTER = {**TRANSFORMER, "dim": 192, "n_head": 3, "n_layer": 2, "ffn_dim_multiplier": 0.45}
POOL = 512  # batches whose laws are kept


class ImageDrafterRecipe(LessonRecipe):
    """Distils `drafter` from the target of a pipeline folder; arguments as of `LessonRecipe`."""

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        guidance_scale: float = 2.0,
        top_k: int = 100,
        rate: float = 3e-3,
        pool: int = POOL,
    ) -> None:
        super().__init__(config, pipeline, guidance_scale, top_k, rate, pool)
        self.model = self.student = LlamaGenTransformer(**DRAFTER)
        self.student.init_weights()

    def loss(
        self, batch: int, rng: np.random.Generator, step: int
    ) -> tuple[Tensor, dict[str, float]]:
        lesson = self.lesson_number(batch)
        variation, divergence = distillation(self._logits(self.student, lesson), lesson)
        return variation + divergence, {"acceptance": 1 - float(variation.detach())}

    def _logits(self, model: Any, lesson: DistillationExample) -> Tensor:
        """The guided logits `[B, S, V]` of a model."""
        prefix, mask = self.condition(model, lesson)
        return self.guided(model(lesson.tokens[:, :-1].repeat(2, 1), prefix, mask))

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        lesson = self.held_out_lesson()
        return {
            "held_out_acceptance": self.acceptance(self._logits(model, lesson), lesson),
            "target_entropy": float(torch.special.entr(lesson.probs.float()).sum(-1).mean()),
        }

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        assert isinstance(model, LlamaGenTransformer)
        # the drafter reads the target's caption features: one "no caption" for both
        nothing = self.teacher.cls_embedding.get_buffer("uncond_embedding")
        model.cls_embedding.get_buffer("uncond_embedding").copy_(nothing)
        write_card(
            ship(self.pipeline, "drafter", model.half()),
            title="Image drafter of the shapes world",
            purpose="drafts 16×16 image tokens for the embedded target, two layers deep",
            limits="distilled at guidance 2 and top-k 100: elsewhere it is accepted less often; "
            "pictures of its own are poor",
            record=record,
            data=f"{self.pool * record['config']['batch_size']:,} scenes of the procedural shapes "
            "world, each many times",
        )
