"""The recipes by name, with default lengths; a model's card says what it was trained with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..errors import InputError
from ..registry import check_name
from .clip import ClipRecipe
from .image_drafter import ImageDrafterRecipe
from .image_head import EagleRecipe
from .image_spatial import ImageSpatialRecipe
from .image_target import SIBLING, ImageTargetRecipe
from .image_tokenizer import ImageTokenizerRecipe
from .image_upsampler import ImageUpsamplerRecipe
from .trainer import Recipe, TrainConfig, Trainer

# steps and batch per stage, in the order in which they build on each other
STAGES: dict[str, dict[str, dict[str, Any]]] = {
    "image-tokenizer": {"vq_model": {"steps": 1600, "batch_size": 16, "ema": 0.995}},
    "image-target": {
        "sibling": {"steps": 3800, "batch_size": 64, "ema": 0.99},
        "transformer": {"steps": 3000, "batch_size": 24, "ema": 0.99},
    },
    "image-drafter": {"drafter": {"steps": 6000, "batch_size": 16, "ema": 0.99}},
    "image-upsampler": {"upsampler": {"steps": 3000, "batch_size": 32, "ema": 0.99}},
    "image-spatial": {"spatial": {"steps": 4000, "batch_size": 16, "ema": 0.99}},
    "image-head": {"eagle": {"steps": 6000, "batch_size": 8, "ema": 0.99}},
    "clip": {"clip": {"steps": 1400, "batch_size": 256, "ema": 0.99, "workers": 1}},
}


def train(
    name: str,
    pipeline: Path,
    *,
    stage: str | None = None,
    init: str | None = None,
    **overrides: Any,
) -> list[dict[str, Any]]:
    """Run a recipe, stage by stage; every stage adds its component to the `pipeline` folder.

    Args:
        name: one of `STAGES`.
        pipeline: folder that holds what the recipe builds on; checkpoints and logs go to its
            `training` folder, and a stage that has a checkpoint there is resumed.
        stage: the one stage to run; None: all of them.
        init: component of the folder whose weights an `image-target` stage starts from, such as
            its own, to train it further; None: see `ImageTargetRecipe`.
        overrides: fields of `TrainConfig`; None keeps the default.

    Returns:
        The record of every stage.
    """
    check_name("recipe", name, STAGES)
    stages = STAGES[name]
    if stage is not None:
        check_name("stage", stage, stages)
        stages = {stage: stages[stage]}
    if init is not None and (name != "image-target" or stage is None):
        raise InputError("a component to start from (init) is for one stage of image-target")
    records = []
    for component, defaults in stages.items():
        config = TrainConfig(out=pipeline / "training" / component, **defaults)
        config = replace(config, **{k: v for k, v in overrides.items() if v is not None})
        torch.manual_seed(config.seed)  # of the first weights; batches have seeds of their own
        recipe: Recipe
        if component == "vq_model":
            recipe = ImageTokenizerRecipe(config, pipeline)
        elif component == "clip":
            recipe = ClipRecipe(config, pipeline)
        elif component == "drafter":
            recipe = ImageDrafterRecipe(config, pipeline)
        elif component == "upsampler":
            recipe = ImageUpsamplerRecipe(config, pipeline)
        elif component == "spatial":
            recipe = ImageSpatialRecipe(config, pipeline)
        elif component == "eagle":
            recipe = EagleRecipe(config, pipeline)
        else:
            resolution = SIBLING if component == "sibling" else 128
            recipe = ImageTargetRecipe(config, pipeline, resolution, init)
        records.append(Trainer(recipe, config).run())
    return records
