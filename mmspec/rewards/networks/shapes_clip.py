"""The embedded CLIP: trained on the shapes world, and of use only there."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ...models.embedded import embedded_folder
from ..base import Images
from .clip import OpenCLIP


class ShapesCLIP(OpenCLIP):
    """CLIP of the shapes world's pictures and captions."""

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path | None = None,
        *,
        device: str | torch.device = "cpu",
        batch_size: int = 64,
    ) -> ShapesCLIP:
        """The embedded model, or one that `mmspec train` has written to `path`.

        Raises:
            InputError: as `OpenCLIP.from_pretrained`.
        """
        clip = super().from_pretrained(
            path or embedded_folder("clip"), device=device, batch_size=batch_size
        )
        clip.name = "shapes_clip"
        return clip

    def features(self, images: Images) -> Tensor:
        """Embeddings of pictures, unit vectors `[N, D]`: their lengths say little in this model."""
        return F.normalize(super().features(images), dim=-1)
