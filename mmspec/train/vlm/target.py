"""Recipe of the embedded vision-language models: LLaVA's classes, trained jointly.

Vision tower, projector and language model are all trained. The tower has learned to see
(`vlm_tower`), the rest knows nothing yet; and the target is grown from the sibling.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from ...errors import InputError
from ...files import atomic_folder, write_json
from ...models.loading import load_component, load_strict
from ...models.transformers.vlm_folder import VERDICT_WORDS
from ...registry import check_name
from ..card import write_card
from ..net2net import net2net
from ..patch_reader import PatchReader
from ..tokenizers import exchange_tokenizer
from ..trainer import TrainConfig
from .data import CHARTS, VERDICT
from .recipe import VlmRecipe, build_processor

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


class ReadVlm(nn.Module):
    """A vision-language model, and a reader of the patches that its language model is shown."""

    def __init__(self, vlm: LlavaForConditionalGeneration, reader: PatchReader) -> None:
        super().__init__()
        self.vlm, self.reader = vlm, reader


class VlmTargetRecipe(VlmRecipe):
    """Trains `LlavaForConditionalGeneration` on questions of the shapes world.

    Args:
        config, rate, charts, seen: see `VlmRecipe`.
        pipeline: folder that receives the target, and in its `drafter` the sibling.
        stage: "target", "sibling", or an expert of one subject, "scenes" or "charts", that is as
            small as the sibling.
        init: the stage whose weights to start from: its own; "tower", for its vision tower; or of a
            target "sibling", and it begins as the same function (`net2net`). None: what stands in
            `BEFORE`, or if that is not trained, nothing.

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
        seen: float = 0.2,
    ) -> None:
        if init is not None:
            check_name("component to start from", init, FOLDERS)
        elif (vlm_folder(pipeline, BEFORE[stage]) / "config.json").exists():
            init = BEFORE[stage]
        self.tokenizer = exchange_tokenizer()
        processor = build_processor(self.tokenizer, SIDE, PATCH)
        super().__init__(config, pipeline, rate, processor, charts, seen)
        self.origin = vlm_folder(pipeline, init) if init else None
        self.stage = stage
        vlm = build_model(stage, self.tokenizer)
        if init is not None:
            self._start(vlm, init)
        self.model = ReadVlm(vlm, self.reader_of(vlm))

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        kept = self.kept(model)
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
