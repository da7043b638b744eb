"""Recipe of drafting heads over the frozen target's features: EAGLE's (Li et al. 2024, section 4).

EAGLE's loss, smooth L1 to the target's hidden states beside a divergence of laws, at every level of
a draft in turn: what the head says of its own outputs counts as well (HASS, Zhang et al. 2024).
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models.llamagen.eagle_head import EagleHead
from ...models.llamagen.transformer import LlamaGenBlock, causal_mask
from ..trainer import Loss
from .distillation_data import DistillationExample, DistillationRecipe, distillation

# levels that a step trains, one of these; deep ones cost as much as all above
DEPTHS = (1, 1, 2, 3)
HELD_OUT_DEPTH = 4


class EagleRecipe(DistillationRecipe):
    """Trains `eagle` on the target of a pipeline folder; arguments as of `DistillationRecipe`."""

    name, reads_hidden = "eagle", True
    pool = 768  # batches whose laws and hidden states are kept, some 3 MB each

    def new_model(self) -> EagleHead:
        target, layer = self.teacher.config, cast(LlamaGenBlock, self.teacher.layers[0])
        width = layer.feed_forward.w1.out_features
        sizes = target.dim, target.n_head, target.n_kv_head, width, target.norm_eps
        head: EagleHead = EagleHead(*sizes)
        head.init_weights()
        return head

    def loss(self, batch: int, rng: np.random.Generator, step: int) -> Loss:
        example = self.example_number(batch)
        depth = DEPTHS[rng.integers(len(DEPTHS))]
        total, metrics = torch.zeros((), device=example.tokens.device), {}
        for level, hidden in enumerate(self.drafted(self.model, example, depth), start=1):
            variation, divergence = distillation(self.logits(hidden), example)
            truth = example.hidden[:, -hidden.shape[1] :].float()
            total = total + variation + divergence + F.smooth_l1_loss(hidden.float(), truth)
            metrics[f"acceptance_{level}"] = 1 - float(variation.detach())
        return total / depth, metrics

    def drafted(self, head: Any, example: DistillationExample, depth: int) -> list[Tensor]:
        """The head's hidden states `[2B, S − level + 1, D]` at 1 to `depth` levels of a draft.

        They are what the laws of the last tokens are made from: no draft reaches the first ones at
        a deeper level.
        """
        teacher, tokens = self.teacher, example.tokens[:, :-1].repeat(2, 1)
        prefix, mask = self.condition(teacher, example.features, example.mask)
        embedded = torch.cat([prefix, teacher.tok_embeddings(tokens)], dim=1)
        features = F.pad(example.hidden[:, :-1].float(), (0, 0, 1, 0))
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
        example = self.example(*self.held_out_scenes())
        figures: dict[str, float] = {}
        levels = self.drafted(model, example, HELD_OUT_DEPTH)
        for level, hidden in enumerate(levels, start=1):
            acceptance = self.acceptance(self.logits(hidden), example)
            figures[f"held_out_acceptance_at_depth_{level}"] = float(acceptance.mean())
        return {**figures, "target_entropy": example.entropy}

    def card(self, record: dict[str, Any]) -> dict[str, str]:
        scenes = min(self.pool, record["step"]) * record["config"]["batch_size"]
        return dict(
            title="EAGLE head of the shapes world's transformer",
            purpose="drafts 16×16 image tokens from the embedded target's hidden states, with the "
            "target's own embeddings and output layer",
            limits="any other target, or this one trained further: it reads that one's hidden "
            "states; trained at guidance 2 and top-k 100: elsewhere it is accepted less often",
            data=f"{scenes:,} scenes of the procedural shapes world, most of them many times",
        )
