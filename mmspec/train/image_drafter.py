"""Recipe of the image drafter: the target's guided law, distilled into a far cheaper transformer.

What a drafter is worth is its acceptance, E[accept] = Σ min(p, q) = 1 − TV(p, q), so the loss is
the total variation itself beside the divergence that gets it started. Both laws are taken after
guidance, as in decoding; p after top-k as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from .data import scene_batch
from .image_target import TRANSFORMER, hybrid_optimizers
from .trainer import TrainConfig

# 11.5 % of the target's matrices; two layers learn more than one of the target's width
DRAFTER = {**TRANSFORMER, "dim": 192, "n_head": 3, "n_layer": 2, "ffn_dim_multiplier": 0.45}
POOL = 512  # batches whose laws are kept
HELD_OUT = 64  # scenes of an evaluation


@dataclass
class Lesson:
    """A batch of scenes and what the target says of it.

    Attributes:
        tokens: `[B, S]`, captions' features: `[B, T, C]`, mask: `[B, T]`.
        probs, ids: the target's law at every token, `[B, S, k]`; no other token has any.
    """

    tokens: Tensor
    features: Tensor
    mask: Tensor
    probs: Tensor
    ids: Tensor


def lesson_of_step(pool: int, rng: np.random.Generator, step: int) -> int:
    """The number of a step's lesson, as the trainer draws it."""
    return step % pool


class ImageDrafterRecipe:
    """Distils a drafter from the target of a pipeline folder.

    Args:
        config: length, batch and device of the run.
        pipeline: folder with `transformer`, `vq_model`, `text_encoder` and `tokenizer`; it receives
            `drafter`.
        guidance_scale: the drafter learns the target's law at this guidance.
        top_k: and after this warper.
        rate: learning rate.
        pool: distinct batches. The target's laws of a batch cost more than a step of the drafter,
            so they are kept for the next time.
    """

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        guidance_scale: float = 2.0,
        top_k: int = 100,
        rate: float = 3e-3,
        pool: int = POOL,
    ) -> None:
        self.config, self.pipeline, self.rate, self.scale = config, pipeline, rate, guidance_scale
        self.pool, self.draw = pool, partial(lesson_of_step, pool)
        self.warp = Warp(1.0, top_k, 1.0)
        self._lessons: dict[int, Lesson] = {}
        device, f32 = config.device, torch.float32
        self.vq = load_model(VQModel, pipeline / "vq_model").to(device)
        self.teacher = load_model(LlamaGenTransformer, pipeline / "transformer").to(device)
        self.text_encoder = load_component(T5EncoderModel, pipeline / "text_encoder", f32).to(
            device
        )
        self.words = load_component(PreTrainedTokenizerFast, pipeline / "tokenizer", f32)
        self.student = LlamaGenTransformer(**DRAFTER)
        self.student.init_weights()
        vocab_size = self.teacher.config.vocab_size
        self.kept = min(top_k or vocab_size, vocab_size)  # tokens of a law
        self.model = self.student

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        return hybrid_optimizers(self.model, self.rate, self.config.precision)

    def loss(
        self, batch: int, rng: np.random.Generator, step: int
    ) -> tuple[Tensor, dict[str, float]]:
        if batch not in self._lessons:
            scenes = scene_batch(
                np.random.default_rng([self.config.seed, batch]), self.config.batch_size, 128
            )
            self._lessons[batch] = self.lesson(*scenes)
        lesson = self._lessons[batch]
        log_q = self._guided(self.student, lesson).log_softmax(-1).gather(-1, lesson.ids.long())
        p = lesson.probs.float()
        variation = 1 - torch.minimum(p, log_q.exp()).sum(-1).mean()
        divergence = -(p * log_q).sum(-1).mean()  # the entropy of p is constant
        return variation + divergence, {"acceptance": 1 - float(variation.detach())}

    @torch.no_grad()
    def lesson(self, captions: list[str], pixels: Tensor) -> Lesson:
        """What the target says of scenes with `captions` and `pixels [B, 3, H, W]`."""
        tokens = self.vq.encode(pixels.to(self.config.device))
        length = self.teacher.prefix_length
        features, mask = encode_captions(self.words, self.text_encoder, captions, length)
        lesson = Lesson(tokens, features, mask, tokens, tokens)
        laws = self.warp(self._guided(self.teacher, lesson)).topk(self.kept, dim=-1)
        # small: as many as fit are kept
        lesson.probs, lesson.ids = laws.values.half(), laws.indices.short()
        return lesson

    def _guided(self, model: Any, lesson: Lesson) -> Tensor:
        """The logits `[B, S, V]` of a model after guidance."""
        nothing = self.teacher.cls_embedding.get_buffer("uncond_embedding")
        features = torch.cat([lesson.features, nothing.expand_as(lesson.features)])
        tokens, mask = lesson.tokens[:, :-1].repeat(2, 1), lesson.mask.repeat(2, 1)
        logits = model(tokens, model.cls_embedding(features), mask).float()
        conditional, without = logits.chunk(2)
        return torch.lerp(without, conditional, self.scale)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        rng = np.random.default_rng([self.config.seed, 10**6])
        lesson = self.lesson(*scene_batch(rng, HELD_OUT, 128, "held_out"))
        p = lesson.probs.float()
        q = self.warp(self._guided(model, lesson)).gather(-1, lesson.ids.long())
        return {
            "held_out_acceptance": float(torch.minimum(p, q).sum(-1).mean()),
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
            purpose="drafts 16×16 image tokens for the embedded target, two layers deep",
            limits="distilled at guidance 2 and top-k 100: elsewhere it is accepted less often; "
            "pictures of its own are poor",
            record=record,
            data=f"{self.pool * record['config']['batch_size']:,} scenes of the procedural shapes "
            "world, each many times",
        )
