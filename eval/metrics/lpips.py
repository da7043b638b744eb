"""LPIPS: how different two pictures look, from the activations of a classification network.

Zhang et al. 2018, "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric",
equation 1, by the authors' package: it brings the calibrated linear heads (version 0.1), the
user the backbone's ImageNet weights.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...rewards.base import Images, rows_alike, select, sizes
from .base import FolderMetric

if TYPE_CHECKING:
    from torch import Tensor

    from ..measure.image_sets import FolderJob, Scored

MIN_SIDE = 32  # below it a backbone's last layer has no pixel

# shape of each torchvision network's first convolution: what tells the files apart
_FIRST = "features.0.weight"
_BACKBONES: dict[tuple[int, ...], str] = {(64, 3, 11, 11): "alex", (64, 3, 3, 3): "vgg"}


class LPIPS:
    """Distances of picture pairs; 0 for equal pictures, larger for less alike ones.

    Args:
        network: the package's `lpips.LPIPS`.
        backbone: `alex` or `vgg`; the figures of the two can't be compared.
        batch_size: most pairs per forward pass; pairs of unequal size go in several.
    """

    def __init__(self, network: Any, backbone: str, batch_size: int = 16) -> None:
        if batch_size < 1:
            raise InputError(f"batch size {batch_size} is less than 1")
        self.network, self.backbone, self.batch_size = network, backbone, batch_size

    @classmethod
    def from_pretrained(cls, path: str | Path, device: str = "cpu", batch_size: int = 16) -> LPIPS:
        """Load torchvision's weights of AlexNet or VGG-16; the tensors tell which.

        Raises:
            InputError: no such file, one that does not hold plain tensors, or other tensors than
                one of the two networks has.
        """
        import lpips  # from the eval extra
        import torch

        from ...models.weights import read_tensors

        weights = read_tensors(path)
        backbone = _BACKBONES.get(tuple(weights.get(_FIRST, torch.empty(0)).shape))
        if backbone is None:
            raise InputError(f"{path} holds neither torchvision's AlexNet nor its VGG-16")
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # torchvision calls the package's way of asking for no download deprecated
            warnings.simplefilter("ignore", UserWarning)
            network = lpips.LPIPS(net=backbone, pnet_rand=True, verbose=False)
        _load_backbone(network.net, weights, path)
        return cls(network.to(device), backbone, batch_size)

    def distances(self, images: Images, references: Images) -> Tensor:
        """Float32 distances `[N]` on the CPU of `images[i]` to `references[i]`.

        Pairs have equal sizes, of `MIN_SIDE` pixels or more.
        """
        import torch

        device = next(self.network.parameters()).device
        out = torch.empty(len(images))
        with torch.inference_mode():
            for rows in rows_alike(sizes(images), self.batch_size):
                pair = [select(side, rows).to(device) / 127.5 - 1 for side in (images, references)]
                out[rows] = self.network(*pair).flatten().cpu()
        return out


@dataclass(frozen=True, kw_only=True)
class LpipsMetric(FolderMetric):
    """Distances of like-named pictures; see `FolderMetric`."""

    single = False

    def check(self, job: FolderJob) -> None:
        from ..data.folders import check_paired

        check_paired(job.images, job.reference)
        for file in job.images.files.values():
            if min(file.size) < MIN_SIDE:
                raise InputError(f"{file.path}: lpips needs {MIN_SIDE} pixels a side or more")

    def score(self, group: Sequence[Any], job: FolderJob) -> Scored:
        from ..measure.bootstrap import mean

        lpips = LPIPS.from_pretrained(job.weights[self.network], job.device, job.batch_size)
        values: dict[str, float] = {}
        both = (job.images.batches(job.batch_size), job.reference.batches(job.batch_size))
        for (ids, pictures), (_, others) in zip(*both, strict=True):
            values |= zip(ids, lpips.distances(pictures, others).tolist(), strict=True)
            job.step(2 * len(ids))
        return {self.name: {**mean(values), "backbone": lpips.backbone, "notes": []}}, values


METRIC = LpipsMetric(
    name="lpips",
    summary="how different like-named pictures look, from a classifier's activations",
    needs=("images", "reference"),
    weights={"lpips": "torchvision's file of AlexNet's or VGG-16's weights"},
    larger_is_better=False,
    bounds=(0, math.inf),
    network="lpips",
)


def _load_backbone(net: Any, weights: Mapping[str, Tensor], path: str | Path) -> None:
    """Fill the package's slices, `slice2.3.weight`, from torchvision's list, `features.3.weight`.

    The classifier is left out: no distance sees it.
    """
    from ...models.loading import check_tensors

    names = {name: f"features.{name.partition('.')[2]}" for name in net.state_dict()}
    needed = {names[name]: value for name, value in net.state_dict().items()}
    found = {name: value for name, value in weights.items() if not name.startswith("classifier.")}
    check_tensors(needed, found, path, type(net).__name__)
    net.load_state_dict({name: weights[source] for name, source in names.items()})
