"""GenEval's judges: networks for real pictures, the rule-based detector for the shapes world's.

Mask2Former finds the objects, CLIP names their colours.

Ghosh et al. 2023, "GenEval: An Object-Focused Framework for Evaluating Text-to-Image Alignment",
section 3, with the settings of the official `evaluate_images.py`: objects above a confidence of 0.3
(0.9 when counting), at most 16 a class, no suppression of overlaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from ...picture import open_picture
from ...worlds.shapes.detector import detect
from ...worlds.shapes.scoring import score_prompt
from .base import JudgePart, Metadata
from .clip_colors import ClipColors, masked_crop
from .mask2former import Instance, Mask2FormerDetector

if TYPE_CHECKING:
    import torch

MASK2FORMER = JudgePart(
    "mask2former",
    "mmspec.eval.judges.geneval:GenEvalJudge",
    "mmspec.eval.judges.coco:CLASSES",
    {
        "mask2former": "the folder of facebook/mask2former-swin-small-coco-instance",
        "clip": "a file of CLIP ViT-L/14 weights for open_clip",
    },
)
SHAPES = JudgePart(
    "shapes",
    "mmspec.eval.judges.geneval:ShapesJudge",
    "mmspec.worlds.shapes.vocabulary:SHAPES",
)
THRESHOLD = 0.3  # the least of `score_prompt`, whose defaults are those of this detector


class GenEvalJudge:
    """Scores pictures against lines of the official `evaluation_metadata.jsonl`.

    Args:
        detector, colors: the two networks.
        name: what reports call the judge.
    """

    def __init__(self, detector: Mask2FormerDetector, colors: ClipColors, name: str) -> None:
        self.name = name
        self._detector = detector
        self._colors = colors

    @classmethod
    def from_pretrained(
        cls,
        detector: str | Path,
        clip: str | Path,
        *,
        clip_model: str = "ViT-L-14-quickgelu",
        device: str | torch.device = "cpu",
    ) -> GenEvalJudge:
        """The official pair from local files: a Mask2Former folder and a file of CLIP weights.

        The published figures come from mmdetection's training of the same architecture; compare
        with them only with that in mind.

        Raises:
            InputError: a file that is missing or does not fit.
        """
        found = Mask2FormerDetector(detector, device=device)
        colors = ClipColors(clip, model=clip_model, device=device)
        return cls(found, colors, f"{Path(detector).resolve().name}+{colors.name}")

    def judge(
        self, prompts: Sequence[Metadata], images: Sequence[Image.Image]
    ) -> list[tuple[bool, str]]:
        """Verdict on each picture: is it correct, and if not, why."""
        verdicts = []
        for metadata, image in zip(prompts, images, strict=True):
            instances = self._detector.detect(image, THRESHOLD)
            found = [_Coloured(**vars(one), image=image, colors=self._colors) for one in instances]
            verdicts.append(score_prompt(metadata, found))
        return verdicts


@dataclass(frozen=True)
class _Coloured(Instance):
    """An instance whose colour is looked up when it is asked for: few prompts do."""

    image: Image.Image
    colors: ClipColors

    @cached_property
    def color(self) -> str:
        crop = masked_crop(self.image, self.mask, self.box)
        return self.colors.classify([crop], self.label)[0]


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
        """Verdict on each picture: is it correct, and if not, why."""
        return [
            score_prompt(metadata, detect(np.asarray(open_picture(image))))
            for metadata, image in zip(prompts, images, strict=True)
        ]
