"""Recipe of a block-diffusion language model, for S2D2 and its router to decode.

Arriola et al. 2025, "Block Diffusion: Interpolating Between Autoregressive and Diffusion Language
Models" (BD3-LM), and SDAR (Cheng et al. 2025), which goes on with an autoregressive model. Blocks
of several sizes are learned, one place among them: at that size the model judges what it drafts.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...draft.masked import own_chain
from ...engine.stats import SpecStats
from ...engine.warp import Warp
from ...files import atomic_folder
from ...models.masked_folders import MASK
from ...models.transformers.masked_target import answering
from ..card import write_card
from ..heads.head_batch import HeadBatch
from ..settings import settings_of
from ..trainer import Loss
from .masked import LEAST, MaskedRecipe
from .smaller import smaller
from .teacher import TextTeacher

BLOCK = 4  # places of the largest block
FOLDER = "masked"


class Noised(NamedTuple):
    """Answers, some tokens of which are masked.

    Attributes:
        masked: `[R, S]`.
        weights: of the tokens' losses `[R, S]`; those of a row's masked tokens add up to its number
            of tokens in expectation.
        block: number of each token's block `[R, S]`, -1 where it is none of an answer.
    """

    masked: Tensor
    weights: Tensor
    block: Tensor


class TextBlockDiffusionRecipe(MaskedRecipe):
    """Makes a masked model of a language model: a folder `masked`, with its tokenizer.

    It begins as the model itself, or as some of its layers, and learns the model's own answers. In
    a step all answers are cut into blocks of one size, from 1 to `block`, the first one shorter by
    chance. In each block tokens are masked with a probability t of its own, and weigh 1 / t; a
    block of one place is masked always. A masked place reads the text in front of its block and
    its block, both ways; the text reads what is in front of it. All blocks learn in one pass over
    the text and its noised copy.

    Args:
        config, pipeline, init, data, rate, max_new_tokens: see `TextDrafterRecipe`.
        settings: `layers` and `width` as there (0: as the model has them) and `block`, as text.
    """

    purpose: ClassVar[str] = (
        "continues texts as a masked diffusion model, by blocks or place by place: methods s2d2, "
        "s2d2-routed and block-diffusion"
    )
    limits: ClassVar[str] = (
        "blocks larger than it has learned; texts of another kind than the answers that it learned"
    )

    def first(self, settings: Mapping[str, str]) -> PreTrainedModel:
        known = {"layers": 0, "width": 0, "block": BLOCK}
        sizes = settings_of(settings, known, "a drafter")
        self.block = self.block_of(sizes)
        target = self.teacher.model
        sizes["layers"] = sizes["layers"] or target.config.num_hidden_layers
        if sizes == {"layers": target.config.num_hidden_layers, "width": 0}:
            model: PreTrainedModel = copy.deepcopy(target).requires_grad_(True)
        else:
            model = smaller(target, sizes)
        (self.mask,) = self.named(model, MASK)
        return model

    def noised(self, answer: Tensor, size: int, rng: np.random.Generator) -> Noised:
        """Noise for answers, which are True in `answer [R, S]`, in blocks of `size` places."""
        rows, device = len(answer), answer.device
        place = answer.long().cumsum(1) - 1
        offset = torch.from_numpy(rng.integers(0, size, (rows, 1))).to(device)
        block = torch.where(answer, (place + offset) // size, -1)
        count = int(block.max()) + 1
        share = torch.from_numpy(LEAST + (1 - LEAST) * rng.random((rows, count))).float()
        if size == 1:
            share = torch.ones_like(share)
        shares = share.to(device).gather(1, block.clamp_min(0))
        chance = torch.from_numpy(rng.random(tuple(answer.shape))).to(device)
        return Noised(answer & (chance < shares), answer / shares, block)

    def denoised(self, tokens: Tensor, mask: Tensor, noise: Noised) -> Tensor:
        """Logits `[R, S, V + 1]` at all places of the noised copies of texts `[R, S]`.

        Args:
            mask: True for real tokens.
            noise: of the texts.
        """
        length, block = tokens.shape[1], noise.block
        column = torch.arange(length, device=tokens.device)
        real, before = mask[:, None], column <= column[:, None]
        text = real & before
        # the text in front of a place's block: none of it is of the same block, or behind
        front = real & before & (block[:, None] != block[..., None]) & (block >= 0)[..., None]
        same = (block[:, None] == block[..., None]) & (block >= 0)[..., None]
        own = torch.eye(length, dtype=torch.bool, device=tokens.device)
        seen = torch.cat(
            [
                torch.cat([text | own, torch.zeros_like(text)], 2),
                torch.cat([front, same | own], 2),
            ],
            1,
        )
        place = (mask.long().cumsum(1) - 1).clamp_min(0)
        both = column.repeat(2)
        distance = (both[:, None] - both).expand(len(tokens), -1, -1)
        bias = torch.zeros_like(seen, dtype=torch.float32).masked_fill(~seen, -torch.inf)
        out = self.model(
            input_ids=torch.cat([tokens, tokens.masked_fill(noise.masked, self.mask)], 1),
            attention_mask=self.decoder.masks.of(bias[:, None], lambda: distance),
            position_ids=place.repeat(1, 2),
            use_cache=False,
        )
        logits: Tensor = out.logits[:, length:]
        return logits

    def loss(self, batch: int, rng: np.random.Generator, step: int) -> Loss:
        lesson = self.teacher.on_device(self.pool.batch(batch))
        assert lesson.tokens is not None
        noise = self.noised(lesson.answer, int(rng.integers(1, self.block + 1)), rng)
        logits = self.denoised(lesson.tokens, lesson.mask, noise)[noise.masked].float()
        said = lesson.tokens[noise.masked]
        each = F.cross_entropy(logits, said, reduction="none")
        metrics = {}
        if len(said):
            metrics["right"] = float((logits.argmax(-1) == said).float().mean())
        return (noise.weights[noise.masked] * each).sum() / lesson.answer.sum(), metrics

    @cached_property
    def held_out(self) -> HeadBatch:
        """Answers to prompts that training never asks."""
        prompts = self.lessons.prompts.held_out()
        encoded, count = self.teacher.encoded(prompts), len(prompts)
        with torch.inference_mode():
            (lesson,) = self.teacher.lessons(encoded, [[]] * count, [*range(count)], count)
        return lesson

    @torch.no_grad()
    def evaluate(self, model: Any) -> dict[str, float]:
        """Acceptance lengths of its own blocks, and how often it says the model's own token.

        At block size 1, where it judges, and at the first place and all places of masked blocks.
        """
        lesson, before = self.teacher.on_device(self.held_out), self.model
        assert lesson.tokens is not None
        figures = {}
        try:
            self.model = model
            for size in sorted({1, self.block}):
                place = lesson.answer.long().cumsum(1) - 1
                block = torch.where(lesson.answer, place // size, -1)
                noise = Noised(lesson.answer, lesson.answer.float(), block)
                said = self.denoised(lesson.tokens, lesson.mask, noise).argmax(-1)
                right = (said == lesson.tokens)[lesson.answer].float().mean()
                figures[f"held_out_right_of_{size}"] = float(right)
        finally:
            self.model = before
        return {**super().evaluate(model), **figures}

    @torch.inference_mode()
    def accepted(self, drafting: TextTeacher, temperature: float) -> SpecStats:
        """Statistics of its own blocks, verified, on held-out prompts."""
        prompts, warp = self.lessons.prompts.held_out(), Warp(temperature)
        target = answering(drafting.placed(drafting.encoded(prompts), warp, 2 + 2 * self.block))
        with drafting.decoder.repacked():
            blocks = own_chain(target, self.block, "drawn")
            return drafting.answer(target, blocks, self.block, [*range(len(prompts))])[1]

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        assert isinstance(model, PreTrainedModel)
        folder = self.pipeline / FOLDER
        with atomic_folder(folder) as part:
            model.half().save_pretrained(part)
            self.teacher.tokenizer.save_pretrained(part)
        write_card(
            folder,
            title=f"Block-diffusion model of a {model.config.model_type} model",
            purpose=self.purpose,
            limits=self.limits,
            record={**record, "component": FOLDER},
            data=self.learned(record),
            held_out="prompts that training never asks",
        )
