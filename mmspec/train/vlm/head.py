"""Recipe of draft heads over a frozen vision-language model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...engine.warp import Warp
from ...models.guided import GuidedDecoder
from ...models.heads.columns import Images
from ...models.transformers.vlm_folder import load_vlm
from ..heads import pool
from ..heads.head_batch import HeadBatch
from ..heads.recipe import HeadRecipe, dtype_of
from ..trainer import TrainConfig
from .prompts import FilePrompts, ShapesPrompts
from .teacher import VlmTeacher

SIDE = 336  # px of the shapes world's pictures, for models that do not say


class VlmHeadRecipe(HeadRecipe):
    """Trains `heads/METHOD` on pictures and questions; nothing of the answers is stored.

    Args:
        config, pipeline, method, init, settings, rate, objective, reference: see
            `HeadRecipe`; the folder holds the model's processor, too.
        data: file of questions, see `FilePrompts`; None: the shapes world.
        max_new_tokens: of an answer.

    Raises:
        InputError: see `HeadRecipe`; or the folder holds no such model, or a line of the data is
            wrong.
    """

    teacher: VlmTeacher

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        method: str,
        init: str | None = None,
        data: Path | None = None,
        settings: Mapping[str, str] | None = None,
        rate: float | None = None,
        max_new_tokens: int = 224,
        objective: str | None = None,
        reference: str | None = None,
    ) -> None:
        parts = load_vlm(pipeline, dtype_of(config))
        target = parts["model"].to(config.device)
        self.prompts = ShapesPrompts(side_of(target)) if data is None else FilePrompts(data)
        teacher = VlmTeacher(target, parts["processor"], max_new_tokens)
        how = init, settings, rate, objective, reference
        super().__init__(config, pipeline, teacher, method, *how)
        self.ready()

    @property
    def asked(self) -> str:
        return f"questions: {self.prompts.described}"

    def lessons(self, number: int, seen: bool) -> list[HeadBatch]:
        size = self.config.batch_size
        rng = np.random.default_rng([self.config.seed, number])
        questions = self.prompts.draw(rng, pool.TOGETHER * size)
        seeds = rng.integers(2**31, size=pool.TOGETHER * size).tolist()
        return self.teacher.examples(questions, seeds, size, seen)

    def held_out(self, warp: Warp, scratch: int) -> tuple[GuidedDecoder, Images | None, int]:
        questions = self.prompts.held_out()
        target, prompt = self.teacher.prompt(questions, warp, scratch)
        return target, Images.of(prompt.images, target.prefix.device), len(questions.texts)


def side_of(target: Any) -> int:
    """Pixels of the pictures that a model's vision tower was made for, `SIDE` if it has any."""
    size = getattr(target.config.vision_config, "image_size", None) or SIDE
    return int(min(size)) if isinstance(size, list | tuple) else int(size)
