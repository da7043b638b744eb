"""Recipe of the embedded vision-language models: LLaVA's classes, trained jointly.

The loss is next-token prediction on answers (Liu et al. 2023, "Visual Instruction Tuning", section
4.2), with vision tower, projector and language model all trained. The tower has learned to see
(`vlm_tower`), the rest knows nothing yet; and the target is grown from the sibling. What the
language model is shown is also asked what each patch shows and where it is (`PatchReader`).
"""

from __future__ import annotations

import copy
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from ...errors import InputError
from ...files import atomic_folder, write_json
from ...models.loading import load_component, load_strict
from ...models.transformers.prompt_inputs import process_questions
from ...models.transformers.vlm_folder import VERDICT_WORDS
from ...registry import check_name
from ...worlds.shapes.exchanges import (
    HeldOut,
    accuracy_by_kind,
    held_out_descriptions,
    held_out_questions,
    score_long,
)
from ...worlds.shapes.exchanges import draw as draw_picture
from ..base import BaseRecipe
from ..card import write_card
from ..net2net import net2net
from ..patch_reader import PatchReader
from ..tokenizers import exchange_tokenizer
from ..trainer import Loss, TrainConfig
from .data import (
    CHARTS,
    NOTHING,
    VERDICT,
    QuestionBatch,
    draw_examples,
    label_sizes,
    pack,
    sample_example,
)

SIDE, PATCH = 96, 8  # pixels: 144 tokens
VISION = dict(hidden_size=192, intermediate_size=512, num_hidden_layers=3, num_attention_heads=3)
TEXT: dict[str, dict[str, Any]] = {
    "target": dict(
        hidden_size=256, intermediate_size=640, num_hidden_layers=7, num_attention_heads=4
    ),
    "sibling": dict(
        hidden_size=192, intermediate_size=512, num_hidden_layers=2, num_attention_heads=3
    ),
}
SIZE = {"scenes": "sibling", "charts": "sibling"}  # whose size a stage has, if not its own
# in the pipeline's; a tower is no part of it
FOLDERS = {
    "tower": "training/tower/model",
    "sibling": "drafter",
    "target": ".",
    "scenes": "experts/scenes",
    "charts": "experts/charts",
}
# what a stage starts from if it is there
BEFORE = {"sibling": "tower", "target": "sibling", "scenes": "sibling", "charts": "sibling"}
QUESTIONS, DESCRIPTIONS = 10, 8  # of every kind, and long ones, of an evaluation
LIMITS = {"short": 6, "long": 220}  # new tokens of an answer
BATCH = 32  # rows that answer at once


class ReadVlm(nn.Module):
    """A vision-language model, and a reader of the patches that its language model is shown."""

    def __init__(self, vlm: LlavaForConditionalGeneration) -> None:
        super().__init__()
        width, patches = vlm.config.text_config.hidden_size, math.isqrt(vlm.config.image_seq_length)
        self.vlm = vlm
        self.reader = PatchReader(width, label_sizes(patches), NOTHING)


class VlmTargetRecipe(BaseRecipe):
    """Trains `LlavaForConditionalGeneration` on questions of the shapes world.

    Args:
        config, rate: see `BaseRecipe`; a batch is of pictures, with some seven questions each.
        pipeline: folder that receives the target, and in its `drafter` the sibling.
        stage: "target", "sibling", or an expert of one subject, "scenes" or "charts", that is as
            small as the sibling.
        init: the stage whose weights to start from: its own; "tower", for its vision tower; or of a
            target "sibling", and it begins as the same function (`net2net`). None: what stands in
            `BEFORE`, or if that is not trained, nothing.
        charts: how often a picture is a chart.
        keep: share of the weights that it starts from in the average that is exported, of a run
            that goes on from its own. What was learned before is forgotten less (WiSE-FT, Wortsman
            et al. 2022).
        seen: weight of the loss of what patches show.

    Raises:
        InputError: `init` is not trained yet, or its weights don't fit.
    """

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        stage: str,
        init: str | None = None,
        rate: float = 2e-3,
        charts: float = CHARTS,
        keep: float = 0.0,
        seen: float = 0.2,
    ) -> None:
        if init is not None:
            check_name("component to start from", init, FOLDERS)
        elif (vlm_folder(pipeline, BEFORE[stage]) / "config.json").exists():
            init = BEFORE[stage]
        super().__init__(config, pipeline, rate)
        self.origin = vlm_folder(pipeline, init) if init else None
        self.stage, self.keep, self.seen = stage, keep, seen
        if not 0 <= keep < 1 or (keep and init != stage):
            raise InputError(
                f"keep must be from 0 to 1, of a run with --init {stage}, not {keep:g}"
            )
        self.tokenizer = exchange_tokenizer()
        self.processor = build_processor(self.tokenizer)
        vlm = build_model(stage, self.tokenizer)
        positions = vlm.config.image_seq_length
        self.draw = partial(
            draw_examples, self.tokenizer, config.batch_size, SIDE, positions, charts
        )
        if init is not None:
            self._start(vlm, init)
        self.first = copy.deepcopy(vlm.state_dict()) if keep else None
        self.model = ReadVlm(vlm)

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
        kept = self._kept(model)
        rng = self.held_out_rng()
        drawn = [sample_example(rng, "held_out") for _ in range(BATCH)]
        examples = pack(self.tokenizer, drawn, SIDE, kept.config.image_seq_length)
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

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        kept = self._kept(model)
        record["config"]["keep"] = self.keep
        folder = vlm_folder(self.pipeline, self.stage)
        with atomic_folder(folder) as part:
            kept.half().save_pretrained(part)
            self.processor.save_pretrained(part)
            if self.stage == "target":
                write_json(part / VERDICT_WORDS, VERDICT)
        write_card(
            folder,
            title=f"Vision-language model of the shapes world ({self.stage})",
            purpose="answers questions about scenes and charts, and describes them at length",
            limits="anything but the shapes world and its charts; words that are not in its "
            "questions are unknown to it",
            record={"component": self.stage, **record},
        )

    def _kept(self, model: Any) -> LlavaForConditionalGeneration:
        """The model without its reader, or its average with what it started from."""
        vlm: LlavaForConditionalGeneration = model.vlm
        if not self.keep:
            return vlm
        assert self.first is not None
        mixed = copy.deepcopy(vlm)
        for name, weight in mixed.state_dict().items():
            weight.lerp_(self.first[name].to(weight), self.keep)
        return mixed

    def _start(self, vlm: LlavaForConditionalGeneration, init: str) -> None:
        """Take the weights of a trained stage."""
        folder = vlm_folder(self.pipeline, init)
        kind = CLIPVisionModel if init == "tower" else LlavaForConditionalGeneration
        trained = load_component(kind, folder, torch.float32)
        if init == "tower":
            load_strict(vlm.model.vision_tower, trained.state_dict(), folder)
        elif SIZE.get(init, init) == SIZE.get(self.stage, self.stage):
            load_strict(vlm, trained.state_dict(), folder)
        else:
            try:
                net2net(vlm, trained.state_dict())
            except ValueError as error:
                raise InputError(f"{folder} is no smaller {self.stage}: {error}") from error


def vlm_folder(pipeline: Path, stage: str) -> Path:
    """Folder of a stage's model in a pipeline's folder."""
    return pipeline / FOLDERS[stage]


def vision_config() -> CLIPVisionConfig:
    """The configuration of the vision tower, which both models share."""
    return CLIPVisionConfig(image_size=SIDE, patch_size=PATCH, **VISION)


def build_model(stage: str, tokenizer: Any) -> LlavaForConditionalGeneration:
    """A model of random weights."""
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    ends["pad_token_id"] = tokenizer.pad_token_id
    config = LlavaConfig(
        vision_config=vision_config(),
        text_config=LlamaConfig(
            vocab_size=len(tokenizer),
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            **ends,
            **TEXT[SIZE.get(stage, stage)],
        ),
        image_token_index=tokenizer.image_token_id,
        image_seq_length=(SIDE // PATCH) ** 2,
        vision_feature_layer=-1,
        tie_word_embeddings=True,
        **ends,
    )
    return LlavaForConditionalGeneration(config)


def build_processor(tokenizer: Any) -> LlavaProcessor:
    """Pictures of any size to pixels in [-1, 1], and texts with a place for every patch."""
    sides = {"height": SIDE, "width": SIDE}
    images = CLIPImageProcessorPil(
        size=sides, crop_size=sides, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return LlavaProcessor(
        images,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
    )


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
    hidden, patches = (
        out.last_hidden_state,
        out.hidden_states[0][:, 1 : 1 + examples.labels.shape[1]],
    )
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
    said: list[str] = []
    for start in range(0, len(lines), BATCH):
        some = lines[start : start + BATCH]
        pictures = [[Image.fromarray(draw_picture(line.picture(), SIDE))] for line in some]
        inputs = process_questions(processor, pictures, [line.question for line in some], model)
        tokens = model.generate(**inputs, max_new_tokens=limit, do_sample=False)
        new = tokens[:, inputs["input_ids"].shape[1] :]
        said += processor.batch_decode(new, skip_special_tokens=True)
    return said
