"""What the distances between sets of features share: how they are scored, named and checked."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...rewards.registry import FEATURES, load_features
from .base import FolderMetric

if TYPE_CHECKING:
    from torch import Tensor

    from ...rewards.base import FeatureExtractor
    from ..measure.image_sets import FolderJob, Scored


class SetAccumulator(Protocol):
    """Accumulates features of two sets, and gives their distance under `name`."""

    name: str

    def add(self, features: Any, real: bool) -> None: ...

    def compute(self) -> dict[str, float]: ...

    def notes(self) -> list[str]: ...


@dataclass(frozen=True, kw_only=True)
class SetDistance(FolderMetric):
    """A distance between the features of two sets of pictures; its network extracts them."""

    single = False

    needs: tuple[str, ...] = ("images", "reference")
    larger_is_better: bool = False

    def weights_of(self, judge: str = "") -> Mapping[str, str]:
        """See `Metric.weights_of`: the extractor says what it needs."""
        weights = FEATURES.get(self.network).weights
        return {self.network: weights} if weights else {}

    @abstractmethod
    def accumulator(self, extractor: FeatureExtractor, seed: int) -> SetAccumulator:
        """What gives the distance of two sets that come in batches.

        Args:
            seed: of whatever chance there is.
        """

    @abstractmethod
    def to_reference(self, reference: Any) -> Callable[[Any], float]:
        """The distance of features `[N, D]` to the reference's, float64 `[M, D]`."""

    def too_few(self, count: int, features: int) -> bool:
        """Whether sets of `count` pictures say little of a distance of so many features."""
        return False

    def check(self, job: FolderJob) -> None:
        """See `FolderMetric.check`."""
        for folder in (job.images, job.reference):
            if len(folder) < 2:
                raise InputError(f"{self.name} needs 2 pictures or more: {folder.folder} has 1")

    def score(self, group: Sequence[Any], job: FolderJob) -> Scored:
        """See `FolderMetric.score`: the features are made once for all distances."""
        extractor = load_features(self.network, job.weights.get(self.network), job.device)
        distances = {m.name: m.accumulator(extractor, job.seed) for m in group}
        for name, distance in distances.items():
            if distance.name != name:  # the name FID is for Inception's features alone
                raise InputError(f"{extractor.name} gives {distance.name}, which is not {name}")
        for folder, real in ((job.images, False), (job.reference, True)):
            for ids, batch in folder.batches(job.batch_size):
                features = extractor.features(batch)
                for distance in distances.values():
                    distance.add(features, real)
                job.step(len(ids))
        results: dict[str, dict[str, Any]] = {}
        for name, distance in distances.items():
            figures = distance.compute()
            results[name] = {"value": figures.pop(name)}
            results[name] |= {key.removeprefix(f"{name}_"): value for key, value in figures.items()}
            results[name] |= {"extractor": extractor.name, "notes": distance.notes()}
        return results, {}


def is_inception(extractor: str) -> bool:
    """Whether a distance over these features may bear the name FID or KID."""
    return extractor.startswith("inception-v3")


def slug(extractor: str) -> str:
    """An extractor's name as part of a metric's: `CLIP ViT-L/14` is `clip_vit_l_14`."""
    return re.sub(r"[^0-9a-z]+", "_", extractor.lower()).strip("_")


def as_float64(features: Tensor, extractor: str) -> NDArray[np.float64]:
    """Features `[N, D]` in double precision.

    Raises:
        InputError: a feature is infinite or not a number, which would spoil every statistic.
    """
    array = features.cpu().numpy().astype(np.float64)
    if array.ndim != 2:
        raise ValueError(f"expected features [N, D], got {list(array.shape)}")
    if not np.isfinite(array).all():
        raise InputError(f"{extractor} gave features that are not finite: check its weights")
    return array
