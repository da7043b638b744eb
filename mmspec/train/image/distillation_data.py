"""What drafters are taught: the frozen target's guided laws, and its hidden states, of scenes.

What a drafter is worth is its acceptance, E[accept] = Σ min(p, q) = 1 − TV(p, q), so the loss is
the total variation itself beside the divergence that gets it started. Both laws are taken after
guidance, as in decoding; p after top-k as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, T5EncoderModel

from ...engine.warp import Warp
from ...models.llamagen.transformer import LlamaGenTransformer
from ...models.llamagen.vq import VQModel
from ...models.loading import load_component, load_model
from ...models.text_encoder import encode_captions
from ..batches import scene_batch
from ..trainer import TrainConfig
from .target import hybrid_optimizers

HELD_OUT = 64  # scenes of an evaluation


@dataclass
class DistillationExample:
    """A batch of scenes and what the target says of it.

    Attributes:
        tokens: `[B, S]`, captions' features: `[B, T, C]`, mask: `[B, T]`.
        probs, ids: the target's law at every token, `[B, S, k]`; no other token has any.
        hidden: its hidden states behind prefix and tokens but the last, unconditional rows last,
            `[2B, T + S − 1, D]`, zero where the caption is padded; empty if nobody reads them.
    """

    tokens: Tensor
    features: Tensor
    mask: Tensor
    probs: Tensor
    ids: Tensor
    hidden: Tensor


def lesson_of_step(pool: int, rng: np.random.Generator, step: int) -> int:
    """The number of a step's lesson, as the trainer draws it."""
    return step % pool


def recent_lesson(pool: int, uses: int, rng: np.random.Generator, step: int) -> int:
    """The number of a step's lesson: every `uses` steps a new one, else one of the last `pool`."""
    newest = step // uses
    if step % uses == 0:
        return newest
    return int(rng.integers(max(0, newest - pool + 1), newest + 1))


class LessonRecipe:
    """What the recipes of drafters share: the target of a pipeline folder as their teacher.

    Args:
        config: length, batch and device of the run.
        pipeline: folder with `transformer`, `vq_model`, `text_encoder` and `tokenizer`; it receives
            the drafter.
        guidance_scale: the drafter learns the target's law at this guidance.
        top_k: and after this warper.
        rate: learning rate.
        pool: distinct batches. What the target says of a batch costs more than a step of the
            drafter, so it is kept for the next time.
    """

    model: nn.Module
    reads_hidden = False  # whether lessons hold hidden states

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        guidance_scale: float,
        top_k: int,
        rate: float,
        pool: int,
    ) -> None:
        self.config, self.pipeline, self.rate, self.scale = config, pipeline, rate, guidance_scale
        self.pool, self.draw = pool, partial(lesson_of_step, pool)
        self.warp = Warp(1.0, top_k, 1.0)
        self._lessons: dict[int, DistillationExample] = {}
        device, f32 = config.device, torch.float32
        self.vq = load_model(VQModel, pipeline / "vq_model").to(device)
        self.teacher = load_model(LlamaGenTransformer, pipeline / "transformer").to(device)
        self.teacher.requires_grad_(False)
        self.text_encoder = load_component(T5EncoderModel, pipeline / "text_encoder", f32).to(
            device
        )
        self.words = load_component(PreTrainedTokenizerFast, pipeline / "tokenizer", f32)
        self.resolution = int(self.teacher.grid * self.vq.downsample_factor)
        vocab_size = self.teacher.config.vocab_size
        self.kept = min(top_k or vocab_size, vocab_size)  # tokens of a law

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        return hybrid_optimizers(self.model, self.rate, self.config.precision)

    def lesson_number(self, number: int) -> DistillationExample:
        """A lesson of the pool."""
        if number not in self._lessons:
            rng = np.random.default_rng([self.config.seed, number])
            scenes = scene_batch(rng, self.config.batch_size, self.resolution)
            self._lessons[number] = self.lesson(*scenes)
        return self._lessons[number]

    def held_out_lesson(self) -> DistillationExample:
        """Scenes of combinations that training never shows."""
        rng = np.random.default_rng([self.config.seed, 10**6])
        return self.lesson(*scene_batch(rng, HELD_OUT, self.resolution, "held_out"))

    @torch.no_grad()
    def lesson(self, captions: list[str], pixels: Tensor) -> DistillationExample:
        """What the target says of scenes with `captions` and `pixels [B, 3, H, W]`."""
        tokens = self.vq.encode(pixels.to(self.config.device))
        teacher, length = self.teacher, self.teacher.prefix_length
        features, mask = encode_captions(self.words, self.text_encoder, captions, length)
        lesson = DistillationExample(tokens, features, mask, tokens, tokens, tokens[:0])
        prefix, both = self.condition(teacher, lesson)
        hidden = teacher.hidden(tokens[:, :-1].repeat(2, 1), prefix, both)
        logits = self.guided(teacher.output(teacher.norm(hidden[:, length - 1 :])))
        laws = self.warp(logits).topk(self.kept, dim=-1)
        # small: as many as fit are kept
        lesson.probs, lesson.ids = laws.values.half(), laws.indices.short()
        if self.reads_hidden:
            hidden = F.rms_norm(hidden, hidden.shape[-1:], eps=teacher.config.norm_eps)
            hidden[:, :length] *= both[..., None]
            lesson.hidden = hidden.half()
        return lesson

    def condition(
        self, model: LlamaGenTransformer, lesson: DistillationExample
    ) -> tuple[Tensor, Tensor]:
        """A model's prefix `[2B, T, D]` and its mask, rows without a caption last."""
        nothing = self.teacher.cls_embedding.get_buffer("uncond_embedding")
        features = torch.cat([lesson.features, nothing.expand_as(lesson.features)])
        return model.cls_embedding(features), lesson.mask.repeat(2, 1)

    def guided(self, logits: Tensor) -> Tensor:
        """Logits `[B, …, V]` after guidance, of those of all rows `[2B, …, V]`."""
        conditional, without = logits.float().chunk(2)
        return torch.lerp(without, conditional, self.scale)

    def acceptance(self, logits: Tensor, lesson: DistillationExample) -> float:
        """Σ min(p, q) on average, of guided `logits [B, s, V]` at the last s tokens."""
        n = logits.shape[1]
        q = self.warp(logits).gather(-1, lesson.ids[:, -n:].long())
        return float(torch.minimum(lesson.probs[:, -n:].float(), q).sum(-1).mean())


def distillation(logits: Tensor, lesson: DistillationExample) -> tuple[Tensor, Tensor]:
    """Total variation, and cross-entropy, of guided `logits [B, s, V]` at the last s tokens."""
    n = logits.shape[1]
    log_q = logits.log_softmax(-1).gather(-1, lesson.ids[:, -n:].long())
    p = lesson.probs[:, -n:].float()
    variation = 1 - torch.minimum(p, log_q.exp()).sum(-1).mean()
    return variation, -(p * log_q).sum(-1).mean()  # the entropy of p is constant
