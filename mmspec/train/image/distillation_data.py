"""Training data of drafters: guided laws and hidden states of the frozen target, for scenes.

What a drafter is worth is its acceptance, E[accept] = Σ min(p, q) = 1 − TV(p, q), so the loss is
the total variation itself beside the divergence that gets it started. Both laws are taken after
guidance, as in decoding; p after top-k as well.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, T5EncoderModel

from ...engine.warp import Warp
from ...models.guided import GuidedDecoder
from ...models.llamagen.decoder import LlamaGenDecoder
from ...models.llamagen.transformer import LlamaGenTransformer
from ...models.llamagen.vq import VQModel
from ...models.prefill import WHOLE
from ...models.setting import Setting
from ...models.text_encoder import encode_captions
from ..base import BaseRecipe
from ..batches import scene_batch
from ..trainer import Draw, TrainConfig

HELD_OUT = 64  # scenes of an evaluation


@dataclass
class TeacherLaws:
    """A batch of scenes and the laws of the target there.

    Attributes:
        tokens: `[B, S]`.
        probs, ids: the law at every token, `[B, S, k]`; no other token has any.
    """

    tokens: Tensor
    probs: Tensor
    ids: Tensor

    @property
    def entropy(self) -> float:
        """Mean entropy of the laws, in nats a token."""
        return float(torch.special.entr(self.probs.float()).sum(-1).mean())


@dataclass
class DistillationExample(TeacherLaws):
    """A batch of scenes and what the target says of it.

    Attributes:
        features, mask: of the captions, `[B, T, C]` and `[B, T]`.
        hidden: the target's hidden states behind prefix and tokens but the last, `[2B, T + S − 1,
            D]`, unconditional rows last, zero where the caption is padded; empty if unread.
    """

    features: Tensor
    mask: Tensor
    hidden: Tensor


def batch_of_step(pool: int, rng: np.random.Generator, step: int) -> int:
    """The number of the batch of a step, as the trainer draws it."""
    return step % pool


def recent_batch(pool: int, uses: int, rng: np.random.Generator, step: int) -> int:
    """The number of a step's batch: a new one every `uses` steps, else one of the last `pool`."""
    newest = step // uses
    if step % uses == 0:
        return newest
    return int(rng.integers(max(0, newest - pool + 1), newest + 1))


class TaughtRecipe(BaseRecipe):
    """Base of the recipes that learn from the frozen target of a pipeline folder.

    Args:
        config, rate, init: see `BaseRecipe`.
        pipeline: folder with `transformer`, `vq_model`, `text_encoder` and `tokenizer`; it receives
            the drafter.
        guidance_scale, top_k, temperature: guidance and warpers of the laws to learn.

    What the target says of a batch costs more than a step of the drafter, so it is kept for the
    next time.
    """

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        guidance_scale: float = 2.0,
        top_k: int = 100,
        rate: float = 3e-3,
        init: str | None = None,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(config, pipeline, rate)
        self.scale, self.warp = guidance_scale, Warp(temperature, top_k, 1.0)
        self.vq: VQModel = self.component(VQModel, "vq_model")
        self.teacher: LlamaGenTransformer = self.component(LlamaGenTransformer, "transformer")
        self.text_encoder = self.component(T5EncoderModel, "text_encoder")
        self.tokenizer = self.component(PreTrainedTokenizerFast, "tokenizer")
        self.resolution = int(self.teacher.grid * self.vq.downsample_factor)
        vocab_size = self.teacher.config.vocab_size
        self.kept = min(top_k or vocab_size, vocab_size)  # tokens of a law
        self._examples: dict[int, Any] = {}
        self.model = self.new_model()
        self.start(init)

    @abstractmethod
    def new_model(self) -> nn.Module:
        """The drafter with its first weights."""

    def encode(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        """Features `[B, T, C]` of captions and their mask `[B, T]`."""
        length = self.teacher.prefix_length
        return encode_captions(self.tokenizer, self.text_encoder, captions, length)

    def condition(
        self, model: LlamaGenTransformer, features: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A model's prefix `[2B, T, D]` and its mask, rows without a caption last."""
        nothing = self.teacher.cls_embedding.get_buffer("uncond_embedding")
        both = torch.cat([features, nothing.expand_as(features)])
        return model.cls_embedding(both), mask.repeat(2, 1)

    @cached_property
    def decoder(self) -> LlamaGenDecoder:
        """The target as it runs at inference."""
        return LlamaGenDecoder(self.teacher)

    def started(
        self, features: Tensor, mask: Tensor, cells: int, reads: tuple[int, ...] = ()
    ) -> GuidedDecoder:
        """The target, which has read captions and leaves hidden states behind.

        Args:
            features, mask: of the captions, see `encode`.
            cells: tokens of a picture.
            reads: see `GuidedDecoder.watch`.
        """
        prompt = self.condition(self.teacher, features, mask)
        setting = Setting(*prompt, self.scale, self.warp, cells, self.teacher.grid, 0)
        model = GuidedDecoder(self.decoder, setting)
        model.watch(reads, prefix=WHOLE)
        model.start(len(features))
        return model

    @staticmethod
    def read(model: GuidedDecoder, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states `[2B, S, A · D]` in front of `tokens [B, S]`, and laws `[B, S, V]`."""
        inputs = torch.cat([tokens[:, :1], tokens[:, :-1]], dim=1)  # the first one is not read
        laws = model.extend(inputs, [-1] * len(tokens))
        assert model.hidden is not None
        return model.hidden.half(), laws

    def guided(self, logits: Tensor) -> Tensor:
        """Logits `[B, …, V]` after guidance, of those of all rows `[2B, …, V]`."""
        conditional, without = logits.float().chunk(2)
        return torch.lerp(without, conditional, self.scale)

    def scenes(self, number: int) -> tuple[list[str], Tensor]:
        """Captions and pictures of a batch."""
        rng = np.random.default_rng([self.config.seed, number])
        return scene_batch(rng, self.config.batch_size, self.resolution)

    def held_out_scenes(self) -> tuple[list[str], Tensor]:
        """Scenes of combinations that training never shows."""
        return scene_batch(self.held_out_rng(), HELD_OUT, self.resolution, "held_out")

    def acceptance(self, logits: Tensor, example: TeacherLaws) -> Tensor:
        """Σ min(p, q) `[B, s]`, of guided `logits [B, s, V]` at the last s tokens."""
        n = logits.shape[1]
        q = self.warp(logits).gather(-1, example.ids[:, -n:].long())
        return torch.minimum(example.probs[:, -n:].float(), q).sum(-1)


class DistillationRecipe(TaughtRecipe):
    """Base of the recipes that learn the laws of one pool of batches.

    Attributes:
        reads_hidden: whether examples hold hidden states.
        pool: distinct batches.
    """

    reads_hidden = False
    pool = 512

    @property
    def draw(self) -> Draw:
        return partial(batch_of_step, self.pool)

    def example_number(self, number: int) -> DistillationExample:
        """A batch of the pool, made when it is first asked for."""
        if number not in self._examples:
            self._examples[number] = self.example(*self.scenes(number))
        return self._examples[number]

    @torch.no_grad()
    def example(self, captions: list[str], pixels: Tensor) -> DistillationExample:
        """Laws of the target for scenes with `captions` and `pixels [B, 3, H, W]`."""
        tokens = self.vq.encode(pixels.to(self.config.device))
        teacher, length = self.teacher, self.teacher.prefix_length
        example = DistillationExample(tokens, tokens, tokens, *self.encode(captions), tokens[:0])
        prefix, both = self.condition(teacher, example.features, example.mask)
        hidden = teacher.hidden(tokens[:, :-1].repeat(2, 1), prefix, both)
        logits = self.guided(teacher.output(teacher.norm(hidden[:, length - 1 :])))
        laws = self.warp(logits).topk(self.kept, dim=-1)
        # small: as many as fit are kept
        example.probs, example.ids = laws.values.half(), laws.indices.short()
        if self.reads_hidden:
            hidden = F.rms_norm(hidden, hidden.shape[-1:], eps=teacher.config.norm_eps)
            hidden[:, :length] *= both[..., None]
            example.hidden = hidden.half()
        return example


def distillation(logits: Tensor, example: TeacherLaws) -> tuple[Tensor, Tensor]:
    """Total variation, and cross-entropy, of guided `logits [B, s, V]` at the last s tokens."""
    n = logits.shape[1]
    log_q = logits.log_softmax(-1).gather(-1, example.ids[:, -n:].long())
    p = example.probs[:, -n:].float()
    variation = 1 - torch.minimum(p, log_q.exp()).sum(-1).mean()
    return variation, -(p * log_q).sum(-1).mean()  # the entropy of p is constant
