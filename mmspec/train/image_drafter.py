"""Recipe of the image drafter: the target's guided law, distilled into a far cheaper transformer.

What a drafter is worth is its acceptance, E[accept] = Σ min(p, q) = 1 − TV(p, q), so the loss is
the total variation itself beside the divergence that gets it started. Both laws are taken after
guidance, as in decoding; p after top-k as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, T5EncoderModel

from ..engine.warp import Warp
from ..models.llamagen import LlamaGenTransformer
from ..models.loading import load_component, load_model
from ..models.text import encode_captions
from ..models.vq import VQModel
from .card import ship, write_card
from .data import draw_scenes, scene_batch
from .image_target import TRANSFORMER, hybrid_optimizers
from .trainer import TrainConfig

# 11 % of the target's matrices; the same width, so that it can start from the target's own
DRAFTER = {**TRANSFORMER, "n_layer": 1, "ffn_dim_multiplier": 0.47}


def start_from(student: LlamaGenTransformer, teacher: LlamaGenTransformer) -> None:
    """Set every weight to the leading part of the teacher's of the same name."""
    weights = teacher.state_dict()
    for name, own in student.state_dict().items():
        own.copy_(weights[name][tuple(slice(n) for n in own.shape)])


class ImageDrafterRecipe:
    """Distils a drafter from the target of a pipeline folder.

    Args:
        config: length, batch and device of the run.
        pipeline: folder with `transformer`, `vq_model`, `text_encoder` and `tokenizer`; it receives
            `drafter`.
        guidance_scale: the drafter learns the target's law at this guidance.
        top_k: and after this warper.
    """

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        guidance_scale: float = 2.0,
        top_k: int = 100,
        rate: float = 3e-3,
    ) -> None:
        self.config, self.pipeline, self.rate, self.scale = config, pipeline, rate, guidance_scale
        self.draw = partial(draw_scenes, config.batch_size, 128)
        self.warp = Warp(1.0, top_k, 1.0)
        device, f32 = config.device, torch.float32
        self.vq = load_model(VQModel, pipeline / "vq_model").to(device)
        self.teacher = load_model(LlamaGenTransformer, pipeline / "transformer").to(device)
        self.text_encoder = load_component(T5EncoderModel, pipeline / "text_encoder", f32).to(
            device
        )
        self.words = load_component(PreTrainedTokenizerFast, pipeline / "tokenizer", f32)
        self.student = LlamaGenTransformer(**DRAFTER)
        start_from(self.student, self.teacher)
        self.model = self.student

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        return hybrid_optimizers(self.model, self.rate, self.config.precision)

    def loss(
        self, batch: Any, rng: np.random.Generator, step: int
    ) -> tuple[Tensor, dict[str, float]]:
        p, log_q = self.laws(self.student, batch)
        variation = (p - log_q.exp()).abs().sum(-1).mean() / 2
        divergence = -(p * log_q).sum(-1).mean()  # the entropy of p is constant
        return variation + divergence, {"acceptance": 1 - float(variation.detach())}

    def laws(self, student: nn.Module, batch: tuple[list[str], Tensor]) -> tuple[Tensor, Tensor]:
        """The target's laws p and the student's log q, both `[B, S, V]`, on a batch of scenes."""
        device = self.config.device
        captions, pixels = batch
        with torch.no_grad():
            tokens = self.vq.encode(pixels.to(device)).repeat(2, 1)
            length = self.teacher.prefix_length
            features, mask = encode_captions(self.words, self.text_encoder, captions, length)
            nothing = self.teacher.cls_embedding.get_buffer("uncond_embedding").expand_as(features)
            both, masks = torch.cat([features, nothing]), mask.repeat(2, 1)
            p = self.warp(self._guided(self.teacher, tokens, both, masks))
        return p, self._guided(student, tokens, both, masks).log_softmax(-1)

    def _guided(self, model: Any, tokens: Tensor, features: Tensor, mask: Tensor) -> Tensor:
        logits = model(tokens[:, :-1], model.cls_embedding(features), mask).float()
        conditional, without = logits.chunk(2)
        return torch.lerp(without, conditional, self.scale)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        rng = np.random.default_rng([self.config.seed, 10**6])
        p, log_q = self.laws(model, scene_batch(rng, self.config.batch_size, 128, "held_out"))
        warped = self.warp(log_q)
        return {
            "held_out_acceptance": float(torch.minimum(p, warped).sum(-1).mean()),
            "target_entropy": float(torch.special.entr(p).sum(-1).mean()),
        }

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        assert isinstance(model, LlamaGenTransformer)
        # the drafter reads the target's caption features: one "no caption" for both
        nothing = self.teacher.cls_embedding.get_buffer("uncond_embedding")
        model.cls_embedding.get_buffer("uncond_embedding").copy_(nothing)
        write_card(
            ship(self.pipeline, "drafter", model.half()),
            title="Image drafter of the shapes world",
            purpose="drafts 16×16 image tokens for the embedded target, one layer deep",
            limits="distilled at guidance 2 and top-k 100: elsewhere it is accepted less often; "
            "pictures of its own are poor",
            record=record,
        )
