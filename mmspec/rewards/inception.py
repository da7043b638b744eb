"""Inception-v3 as FID and KID use it: the pool features of the 2015 TensorFlow network.

Szegedy et al. 2016, "Rethinking the Inception Architecture for Computer Vision", as in Heusel et
al. 2017, "GANs Trained by a Two Time-Scale Update Rule Converge to a Local Nash Equilibrium". The
network and its weights are torch-fidelity's port, which resizes like TensorFlow 1: bilinear,
without antialiasing. Another port, or another resize, gives another FID.
"""

from __future__ import annotations

import io
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .base import Images, rows_alike, select, sizes
from .registry import FeaturePart

if TYPE_CHECKING:
    from torch import Tensor

INCEPTION = FeaturePart(
    "inception-v3",
    "mmspec.rewards.inception:InceptionV3",
    weights="the file weights-inception-2015-12-05-6726825d.pth (of torch-fidelity)",
)


class InceptionV3:
    """Features `[N, 2048]` after the last pooling; a `FeatureExtractor`.

    Args:
        network: torch-fidelity's `FeatureExtractorInceptionV3`, with the one feature `"2048"`.
        batch_size: most pictures per forward pass; pictures of unequal size go in several.
    """

    name = "inception-v3-compat-tf-bilinear"
    dim = 2048

    def __init__(self, network: Any, batch_size: int = 32) -> None:
        if batch_size < 1:
            raise InputError(f"batch size {batch_size} is less than 1")
        self.network, self.batch_size = network, batch_size

    @classmethod
    def from_pretrained(
        cls, path: str | Path, device: str = "cpu", batch_size: int = 32
    ) -> InceptionV3:
        """Load `weights-inception-2015-12-05-6726825d.pth`, as torch-fidelity publishes it.

        Pytorch-fid's `pt_inception-2015-12-05-6726825d.pth` has the same tensors (the end of both
        names is the same hash).

        Raises:
            InputError: no such file, one that does not hold plain tensors, or a tensor missing,
                unexpected or of another shape.
        """
        import torch
        from torch_fidelity.feature_extractor_inceptionv3 import (  # from the eval extra
            FeatureExtractorInceptionV3,
        )

        from ..models.weights import read_tensors

        # The library would unpickle whatever the file holds, so it gets a copy of the tensors alone
        safe = io.BytesIO()
        torch.save(read_tensors(path), safe)
        safe.seek(0)
        try:
            network = FeatureExtractorInceptionV3(cls.name, [str(cls.dim)], safe)
        except RuntimeError as error:  # several lines: a heading, then a line per kind of misfit
            problem = shorten(" ".join(str(error).split("\n")[1:2]), 160, placeholder=" …")
            raise InputError(f"{path} does not fit Inception-v3: {problem}") from error
        return cls(network.to(device), batch_size)

    def features(self, images: Images) -> Tensor:
        """Float32 features `[N, 2048]` on the CPU."""
        import torch

        device = self.network.fc.weight.device
        out = torch.empty(len(images), self.dim)
        with torch.inference_mode():
            for rows in rows_alike(sizes(images), self.batch_size):
                (features,) = self.network(select(images, rows).to(device))
                out[rows] = features.cpu()
        return out
