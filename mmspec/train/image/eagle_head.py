"""Recipe of drafting heads over the frozen target's features: EAGLE's (Li et al. 2024, section 4).

EAGLE's loss, smooth L1 to the target's hidden states beside a divergence of laws, at every level of
a draft in turn: what the head says of its own outputs counts as well (HASS, Zhang et al. 2024).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models.llamagen.eagle_head import EagleHead
from ...models.llamagen.transformer import causal_mask
from ..card import ship, write_card
from ..trainer import TrainConfig
from .distillation_data import DistillationExample, LessonRecipe, distillation

POOL = 768  # batches whose laws and hidden states are kept, some 3 MB each
DEPTHS = (
    1,
    1,
    2,
    3,
)  # levels that a step trains, one of these; deep ones cost as much as all above
HELD_OUT_DEPTH = 4


class EagleRecipe(LessonRecipe):
    """Trains `eagle` on the target of a pipeline folder; arguments as of `LessonRecipe`."""

    reads_hidden = True

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
        target = self.teacher.config
        self.model = self.head = EagleHead(
            target.dim,
            target.n_head,
            target.n_kv_head,
            self.teacher.layers[0].feed_forward.w1.out_features,
            target.norm_eps,
        )
        self.head.init_weights()

    def loss(
        self, batch: int, rng: np.random.Generator, step: int
    ) -> tuple[Tensor, dict[str, float]]:
        lesson = self.lesson_number(batch)
        depth = DEPTHS[rng.integers(len(DEPTHS))]
        total, metrics = torch.zeros((), device=lesson.tokens.device), {}
        for level, hidden in enumerate(self.drafted(self.head, lesson, depth), start=1):
            variation, divergence = distillation(self.logits(hidden), lesson)
            truth = lesson.hidden[:, -hidden.shape[1] :].float()
            total = total + variation + divergence + F.smooth_l1_loss(hidden.float(), truth)
            metrics[f"acceptance_{level}"] = 1 - float(variation.detach())
        return total / depth, metrics

    def drafted(self, head: Any, lesson: DistillationExample, depth: int) -> list[Tensor]:
        """The head's hidden states `[2B, S − level + 1, D]` at 1 to `depth` levels of a draft.

        They are what the laws of the last tokens are made from: no draft reaches the first ones at
        a deeper level.
        """
        teacher, tokens = self.teacher, lesson.tokens[:, :-1].repeat(2, 1)
        prefix, mask = self.condition(teacher, lesson)
        embedded = torch.cat([prefix, teacher.tok_embeddings(tokens)], dim=1)
        features = F.pad(lesson.hidden[:, :-1].float(), (0, 0, 1, 0))
        length = embedded.shape[1]
        attended = causal_mask(mask, length)
        levels = head(embedded, features, teacher.rotary()[:length], attended, depth)
        first = teacher.prefix_length - 1
        return [hidden[:, first + level :] for level, hidden in enumerate(levels)]

    def logits(self, hidden: Tensor) -> Tensor:
        """The guided logits `[B, s, V]` that the target's output layer makes of `[2B, s, D]`."""
        return self.guided(self.teacher.output(hidden * self.teacher.norm.weight))

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        lesson = self.held_out_lesson()
        levels = self.drafted(model, lesson, HELD_OUT_DEPTH)
        figures = {
            f"held_out_acceptance_at_depth_{level}": self.acceptance(self.logits(hidden), lesson)
            for level, hidden in enumerate(levels, start=1)
        }
        figures["target_entropy"] = float(torch.special.entr(lesson.probs.float()).sum(-1).mean())
        return figures

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        assert isinstance(model, EagleHead)
        scenes = min(self.pool, record["step"]) * record["config"]["batch_size"]
        write_card(
            ship(self.pipeline, "eagle", model.half()),
            title="EAGLE head of the shapes world's transformer",
            purpose="drafts 16×16 image tokens from the embedded target's hidden states, with the "
            "target's own embeddings and output layer",
            limits="any other target, or this one trained further: it reads that one's hidden "
            "states; trained at guidance 2 and top-k 100: elsewhere it is accepted less often",
            record=record,
            data=f"{scenes:,} scenes of the procedural shapes world, most of them many times",
        )
