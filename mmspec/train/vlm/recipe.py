"""Loss and held-out figures of vision-language models that learn to answer questions.

The loss is next-token prediction on answers (Liu et al. 2023, "Visual Instruction Tuning", section
4.2). What the language model is shown is also asked what each patch shows and where it is
(`PatchReader`).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from transformers import LlavaForConditionalGeneration, LlavaProcessor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from ...models.transformers.prompt_inputs import process_questions
from ...worlds.shapes.exchanges import (
    HeldOut,
    accuracy_by_kind,
    held_out_descriptions,
    held_out_questions,
    score_long,
)
from ...worlds.shapes.exchanges import draw as draw_picture
from ..base import BaseRecipe
from ..patch_reader import PatchReader
from ..trainer import Loss, TrainConfig
from .data import CHARTS, NOTHING, QuestionBatch, draw_examples, label_sizes, pack, sample_example
from .turns import Turns

QUESTIONS, DESCRIPTIONS = 10, 8  # of every kind, and long ones, of an evaluation
LIMITS = {"short": 6, "long": 220}  # new tokens of an answer
BATCH = 32  # rows that answer at once


class VlmRecipe(BaseRecipe):
    """Trains a LLaVA model on questions of the shapes world.

    The recipe's `model` has the LLaVA model as `vlm` and a `PatchReader` as `reader`.

    Args:
        config, pipeline, rate: see `BaseRecipe`; a batch is of pictures, with some seven questions
            each.
        processor: the model's.
        charts: how often a picture is a chart.
        seen: weight of the loss of what patches show.
        ends: see `Turns.of`.
    """

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        rate: float,
        processor: LlavaProcessor,
        charts: float = CHARTS,
        seen: float = 0.2,
        ends: Collection[int] = (),
    ) -> None:
        super().__init__(config, pipeline, rate)
        self.processor, self.seen = processor, seen
        self.turns = Turns.of(processor, ends)
        self.side, self.places = sizes_of(processor)
        self.draw = partial(
            draw_examples, self.turns, config.batch_size, self.side, self.places, charts
        )

    def reader_of(self, vlm: LlavaForConditionalGeneration) -> PatchReader:
        """A reader of the patches that a model's language model is shown."""
        width, patches = vlm.config.text_config.hidden_size, math.isqrt(self.places)
        return PatchReader(width, label_sizes(patches), NOTHING)

    def loss(self, batch: Any, rng: np.random.Generator, step: int) -> Loss:
        batch = batch.to(self.config.device)
        losses, weights, patches = token_losses(self.model.vlm, batch)
        seen, long = self.model.reader.loss(patches, batch.labels), losses.detach()[weights == 1]
        metrics = {"long": float(long.mean()) if len(long) else 0.0, "seen": float(seen.detach())}
        return (losses * weights).sum() / weights.sum() + self.seen * seen, metrics

    @torch.no_grad()
    def evaluate(self, model: Any) -> dict[str, float]:
        """Greedy answers to questions about what training never shows, and the loss on long ones.

        The questions are not those of the fixed lists.
        """
        kept = self.kept(model)
        rng = self.held_out_rng()
        drawn = [sample_example(rng, "held_out") for _ in range(BATCH)]
        examples = pack(self.turns, drawn, self.side, self.places)
        losses, weights, _ = token_losses(kept, examples.to(self.config.device))
        figures = {"held_out_nats_per_token": float(losses[weights == 1].mean())}
        short = list(held_out_questions(QUESTIONS, seed=1))
        said = answer_all(kept, self.processor, short, LIMITS["short"])
        right = [line.is_right(text) for line, text in zip(short, said, strict=True)]
        figures["held_out_accuracy"] = sum(right) / len(right)
        kinds = accuracy_by_kind(zip((line.kind for line in short), right, strict=True))
        figures |= {f"accuracy_{kind}": value for kind, value in kinds.items()}
        long = list(held_out_descriptions(DESCRIPTIONS, seed=1))
        said = answer_all(kept, self.processor, long, LIMITS["long"])
        scores = [score_long(text, line.picture()) for line, text in zip(long, said, strict=True)]
        figures["truthfulness"] = float(np.mean([score.truthfulness for score in scores]))
        figures["coverage"] = float(np.mean([score.coverage for score in scores]))
        return figures

    def kept(self, model: Any) -> LlavaForConditionalGeneration:
        """The model that is evaluated and exported, without its reader."""
        vlm: LlavaForConditionalGeneration = model.vlm
        return vlm


def build_processor(tokenizer: Any, side: int, patch: int) -> LlavaProcessor:
    """Pictures of any size to `side` pixels in [-1, 1], and texts with a place for every patch."""
    sides = {"height": side, "width": side}
    images = CLIPImageProcessorPil(
        size=sides, crop_size=sides, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return LlavaProcessor(
        images,
        tokenizer,
        patch_size=patch,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
    )


def sizes_of(processor: LlavaProcessor) -> tuple[int, int]:
    """Pixels along a side of a picture, and its tokens, as a processor makes them."""
    side = int(processor.image_processor.crop_size["height"])
    return side, (side // processor.patch_size) ** 2


def token_losses(
    model: LlavaForConditionalGeneration, examples: QuestionBatch
) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy in nats of every answer token, and its weight, `[N]` each.

    Third, the patches `[B, P, D]` as the language model is shown them.
    """
    out = model.model(
        input_ids=examples.ids,
        pixel_values=examples.pictures.permute(0, 3, 1, 2).float() / 127.5 - 1,
        attention_mask=examples.mask(),
        position_ids=examples.positions,
        use_cache=False,
        output_hidden_states=True,
    )
    hidden, shown = out.last_hidden_state, examples.ids == model.config.image_token_id
    patches = out.hidden_states[0][shown].view(*examples.labels.shape[:2], -1)
    weights = examples.weights[:, 1:]
    answers = weights > 0
    logits = model.lm_head(hidden[:, :-1][answers])
    losses = F.cross_entropy(logits.float(), examples.ids[:, 1:][answers], reduction="none")
    return losses, weights[answers], patches


@torch.no_grad()
def answer_all(
    model: LlavaForConditionalGeneration,
    processor: LlavaProcessor,
    lines: list[HeldOut],
    limit: int,
) -> list[str]:
    """Greedy answers of at most `limit` tokens to the questions of a held-out list."""
    side, said = sizes_of(processor)[0], []
    for start in range(0, len(lines), BATCH):
        some = lines[start : start + BATCH]
        pictures = [[picture] for picture in pictures_of(some, side)]
        inputs = process_questions(processor, pictures, [line.question for line in some], model)
        tokens = model.generate(**inputs, max_new_tokens=limit, do_sample=False)
        new = tokens[:, inputs["input_ids"].shape[1] :]
        said += processor.batch_decode(new, skip_special_tokens=True)
    return said


def pictures_of(lines: list[HeldOut], side: int) -> list[Image.Image]:
    """Pictures of `side` pixels of a held-out list."""
    return [Image.fromarray(draw_picture(line.picture(), side)) for line in lines]
