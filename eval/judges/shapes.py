"""The shapes world's judge: its rule-based detector under GenEval's rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from ...picture import open_picture
from ...worlds.shapes.detector import detect
from ..metrics.geneval import score_prompt
from .base import JudgePart, Metadata

SHAPES = JudgePart(
    "shapes",
    "mmspec.eval.judges.shapes:ShapesJudge",
    "mmspec.worlds.shapes.vocabulary:SHAPES",
)


class ShapesJudge:
    """Judges drawn or generated scenes of the shapes world (GenEval's six tasks)."""

    name = "shapes_detector"

    @classmethod
    def from_pretrained(cls, device: str = "cpu") -> ShapesJudge:
        """The judge, which has no weights; its arithmetic is NumPy's."""
        return cls()

    def judge(
        self, prompts: Sequence[Metadata], images: Sequence[Image.Image]
    ) -> list[tuple[bool, str]]:
        """For each picture whether it is correct, and if not, why."""
        return [
            score_prompt(metadata, detect(np.asarray(open_picture(image))))
            for metadata, image in zip(prompts, images, strict=True)
        ]
