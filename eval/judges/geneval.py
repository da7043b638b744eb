"""GenEval's judge of real pictures: Mask2Former finds the objects, CLIP names their colours.

Ghosh et al. 2023, "GenEval: An Object-Focused Framework for Evaluating Text-to-Image Alignment",
section 3, with the settings of the official `evaluate_images.py`: objects above a confidence of 0.3
(0.9 when counting), at most 16 a class, no suppression of overlaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from PIL import Image

from ..metrics.geneval import Box, score_prompt
from .base import JudgePart, Metadata

if TYPE_CHECKING:
    import torch

    from .mask2former import Instance

MASK2FORMER = JudgePart(
    "mask2former",
    "mmspec.eval.judges.geneval:GenEvalJudge",
    "mmspec.eval.judges.coco:CLASSES",
    {
        "mask2former": "the folder of facebook/mask2former-swin-small-coco-instance",
        "clip": "a file of CLIP ViT-L/14 weights for open_clip",
    },
)
THRESHOLD, COUNTING_THRESHOLD = 0.3, 0.9


class Detector(Protocol):
    """Finds objects of GenEval's classes."""

    def detect(self, image: Image.Image, threshold: float) -> list[Instance]:
        """The instances with a confidence above `threshold`, in any order."""


class ColorClassifier(Protocol):
    """Names colours."""

    def classify(self, crops: Sequence[Image.Image], label: str) -> list[str]:
        """The colour of each cropped object of class `label`."""


class GenEvalJudge:
    """Scores pictures against lines of the official `evaluation_metadata.jsonl`.

    Args:
        detector, colors: the two networks.
        name: what reports call the judge.
    """

    def __init__(self, detector: Detector, colors: ColorClassifier, name: str) -> None:
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
        from .clip_colors import ClipColors
        from .mask2former import Mask2FormerDetector

        found = Mask2FormerDetector(detector, device=device)
        colors = ClipColors(clip, model=clip_model, device=device)
        return cls(found, colors, f"{Path(detector).resolve().name}+{colors.name}")

    def judge(
        self, prompts: Sequence[Metadata], images: Sequence[Image.Image]
    ) -> list[tuple[bool, str]]:
        """For each picture whether it is correct, and if not, why."""
        return [
            self._judge(metadata, image) for metadata, image in zip(prompts, images, strict=True)
        ]

    def _judge(self, metadata: Metadata, image: Image.Image) -> tuple[bool, str]:
        found = self._detector.detect(image, THRESHOLD)
        return score_prompt(
            metadata,
            [_Detected(instance, image, self._colors) for instance in found],
            threshold=THRESHOLD,
            counting_threshold=COUNTING_THRESHOLD,
        )


class _Detected:
    """An instance whose colour is looked up when it is asked for: few prompts do."""

    def __init__(self, instance: Instance, image: Image.Image, colors: ColorClassifier) -> None:
        self.label = instance.label
        self.box: Box = instance.box
        self.confidence = instance.confidence
        self._mask = instance.mask
        self._image = image
        self._colors = colors

    @cached_property
    def color(self) -> str:
        from .clip_colors import masked_crop

        crop = masked_crop(self._image, self._mask, self.box)
        return self._colors.classify([crop], self.label)[0]
