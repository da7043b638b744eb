"""Objects of COCO's classes by Mask2Former, the detector of the official GenEval.

Cheng et al. 2022, "Masked-attention Mask Transformer for Universal Image Segmentation"; the network
is transformers'. The steps around it are those that GenEval's published figures were made with (the
test configuration `mask2former_swin-s-p4-w7-224_lsj_8x2_50e_coco` of mmdetection): the shorter side
at 800 pixels and the longer at most 1333, and masks at the picture's own resolution. transformers'
`post_process_instance_segmentation` has the same scores but cuts every mask on a 384 × 384 grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ...errors import InputError
from ...picture import open_picture
from ...worlds.shapes.scoring import Box
from .coco import CLASSES, geneval_class

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Instance:
    """An object: its class, confidence, box (upper ends exclusive) and mask `[H, W]`, bool."""

    label: str
    confidence: float
    box: Box
    mask: npt.NDArray[np.bool_]


class Mask2FormerDetector:
    """Instances in a picture, by a local copy of a COCO instance-segmentation checkpoint.

    Args:
        folder: holds the model (safetensors) and its image processor, for example a copy of
            `facebook/mask2former-swin-small-coco-instance`, the one that GenEval used.
        device: where the network runs.
        shortest_edge, longest_edge: what pictures are resized to, their proportions kept.

    Raises:
        InputError: the folder does not fit, or the detector can't name one of GenEval's classes.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        device: str | torch.device = "cpu",
        shortest_edge: int = 800,
        longest_edge: int = 1333,
    ) -> None:
        import torch
        from transformers import Mask2FormerForUniversalSegmentation, Mask2FormerImageProcessor

        from ...models.loading import load_component

        folder = Path(folder)
        self.device = torch.device(device)
        self._size = {"shortest_edge": shortest_edge, "longest_edge": longest_edge}
        self._processor = load_component(Mask2FormerImageProcessor, folder, torch.float32)
        model = load_component(Mask2FormerForUniversalSegmentation, folder, torch.float32)
        self._model = model.to(self.device)
        names: dict[int, str] = self._model.config.id2label
        self._labels = {index: geneval_class(name) for index, name in names.items()}
        missing = [name for name in CLASSES if name not in self._labels.values()]
        if missing:
            raise InputError(
                f"{folder} can't detect {missing[0]!r} ({len(missing)} of {len(CLASSES)} classes of"
                " GenEval are missing): take a model of COCO instance segmentation"
            )

    def detect(self, image: Image.Image, threshold: float) -> list[Instance]:
        """The instances with a confidence above `threshold`, in no order."""
        import torch

        picture = open_picture(image)
        inputs = self._processor(images=picture, size=self._size, return_tensors="pt")
        pixels = inputs["pixel_values"].to(self.device)  # [1, 3, H', W']
        with torch.inference_mode():
            output: Any = self._model(pixels)
        scores, labels, masks = instances(
            output.class_queries_logits[0],
            output.masks_queries_logits[0],
            (pixels.shape[-2], pixels.shape[-1]),
            (picture.height, picture.width),
            threshold,
        )
        rows = zip(scores.tolist(), labels.tolist(), masks.cpu().numpy(), strict=True)
        return [Instance(self._labels[k], score, box_of(mask), mask) for score, k, mask in rows]


def instances(
    class_logits: Tensor,
    mask_logits: Tensor,
    input_size: tuple[int, int],
    size: tuple[int, int],
    threshold: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Instances in one picture: scores `[N]`, labels `[N]` and masks `[N, H, W]` (bool).

    A candidate is a query with a class; as many of the most probable ones as there are queries are
    kept. Its score is the class probability times the mean mask probability inside its mask (where
    that is above 1/2).

    Args:
        class_logits: `[Q, C + 1]`, the last class being "no object".
        mask_logits: `[Q, h, w]`.
        input_size: height and width of the network's input.
        size: height and width of the picture, and of the masks.
        threshold: only scores above it are returned.
    """
    import torch
    import torch.nn.functional as F

    probabilities = class_logits.softmax(-1)[:, :-1]
    best, index = probabilities.flatten().topk(len(class_logits))
    likely = best > threshold  # a score is at most its class probability
    best, index = best[likely], index[likely]
    if not len(best):
        return best, index, mask_logits.new_zeros((0, *size), dtype=torch.bool)
    query = index.div(probabilities.shape[-1], rounding_mode="floor")
    logits = mask_logits[query][:, None]
    for side in (input_size, size):
        logits = F.interpolate(logits, size=side, mode="bilinear", align_corners=False)
    logits = logits[:, 0]
    masks = logits > 0
    inside = (logits.sigmoid() * masks).sum((1, 2)) / (masks.sum((1, 2)) + 1e-6)
    scores = best * inside
    keep = scores > threshold
    return scores[keep], (index % probabilities.shape[-1])[keep], masks[keep]


def box_of(mask: npt.NDArray[np.bool_]) -> Box:
    """The box around a mask `[H, W]` that is not empty."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)
