"""Recipe of the image drafter: the target's guided law, distilled into a far cheaper transformer.

For the loss see `distillation_data`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...models.llamagen.transformer import LlamaGenTransformer
from ..trainer import Loss
from .distillation_data import DistillationExample, DistillationRecipe, distillation
from .target import TRANSFORMER

# 11.5 % of the target's matrices; two layers learn more than one of the target's width
DRAFTER = {**TRANSFORMER, "dim": 192, "n_head": 3, "n_layer": 2, "ffn_dim_multiplier": 0.45}


class SmallerTransformerRecipe(DistillationRecipe):
    """Base of the recipes that distil a smaller transformer of the target's kind."""

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        assert isinstance(model, LlamaGenTransformer)
        # the drafter reads the target's caption features: one "no caption" for both
        nothing = self.teacher.cls_embedding.get_buffer("uncond_embedding")
        model.cls_embedding.get_buffer("uncond_embedding").copy_(nothing)
        super().export(model, record)


class ImageDrafterRecipe(SmallerTransformerRecipe):
    """Distils `drafter` from the target of a folder; arguments as of `DistillationRecipe`."""

    name = "drafter"

    def new_model(self) -> LlamaGenTransformer:
        student: LlamaGenTransformer = LlamaGenTransformer(**DRAFTER)
        student.init_weights()
        return student

    def loss(self, batch: int, rng: np.random.Generator, step: int) -> Loss:
        example = self.example_number(batch)
        variation, divergence = distillation(self._logits(self.model, example), example)
        return variation + divergence, {"acceptance": 1 - float(variation.detach())}

    def _logits(self, model: Any, example: DistillationExample) -> Tensor:
        """The guided logits `[B, S, V]` of a model."""
        prefix, mask = self.condition(model, example.features, example.mask)
        return self.guided(model(example.tokens[:, :-1].repeat(2, 1), prefix, mask))

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        example = self.example(*self.held_out_scenes())
        acceptance = self.acceptance(self._logits(model, example), example)
        return {"held_out_acceptance": float(acceptance.mean()), "target_entropy": example.entropy}

    def card(self, record: dict[str, Any]) -> dict[str, str]:
        return dict(
            title="Image drafter of the shapes world",
            purpose="drafts 16×16 image tokens for the embedded target, two layers deep",
            limits="distilled at guidance 2 and top-k 100: elsewhere it is accepted less often; "
            "pictures of its own are poor",
            data=f"{self.pool * record['config']['batch_size']:,} scenes of the procedural shapes "
            "world, each many times",
        )
