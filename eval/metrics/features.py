"""Base of the distances between sets of features: their scores, names and checks."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...rewards.registry import FEATURES, load_features
from .base import FolderMetric

if TYPE_CHECKING:
    from torch import Tensor

    from ...rewards.base import FeatureExtractor, Images
    from ..measure.image_sets import FolderJob, Scored


Array = NDArray[np.float64]


class FeatureSet(Protocol):
    """Known part of a set's features."""

    @property
    def n(self) -> int:
        """Pictures so far."""

    def update(self, batch: Array) -> None:
        """Add features `[N, D]`."""


S = TypeVar("S", bound=FeatureSet)


class SetAccumulator(ABC, Generic[S]):
    """Features of real and generated pictures that come in batches, and their distance.

    Attributes:
        name: the first of `names` for Inception-v3, else the second and the extractor's:
            `kid_clip_vit_l_14` for `CLIP ViT-L/14`.
        sets: what is known of either, "real" and "generated".
    """

    names: ClassVar[tuple[str, str]]
    set_class: type[S]
    sets: dict[str, S]

    def __init__(self, extractor: FeatureExtractor) -> None:
        self.extractor = extractor
        slug = re.sub(r"[^0-9a-z]+", "_", extractor.name.lower()).strip("_")
        alone, over = self.names
        self.name = alone if extractor.name.startswith("inception-v3") else f"{over}_{slug}"
        self.reset()

    def reset(self) -> None:
        """Forget all pictures."""
        self.sets = {"real": self.set_class(), "generated": self.set_class()}

    def update(self, images: Images, real: bool) -> None:
        """Add pictures to one of the two sets."""
        self.add(self.extractor.features(images), real)

    def add(self, features: Tensor, real: bool) -> None:
        """Add features `[N, D]` that the extractor has already given.

        Raises:
            InputError: a feature is infinite or not a number, which would spoil every statistic.
        """
        array = features.cpu().numpy().astype(np.float64)
        if array.ndim != 2:
            raise ValueError(f"expected features [N, D], got {list(array.shape)}")
        if not np.isfinite(array).all():
            name = self.extractor.name
            raise InputError(f"{name} gave features that are not finite: check its weights")
        self.sets["real" if real else "generated"].update(array)

    def compute(self) -> dict[str, float]:
        """The distance under `name`, and what else the metric tells.

        Raises:
            InputError: a set of fewer than two pictures.
        """
        for kind, known in self.sets.items():
            if known.n < 2:
                raise InputError(f"{self.name} needs 2 {kind} pictures or more, got {known.n}")
        return self.distance(self.sets["real"], self.sets["generated"])

    @abstractmethod
    def distance(self, real: S, generated: S) -> dict[str, float]:
        """The figures of `compute`."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Warnings for readers who compare the figure: sets that are too small."""


@dataclass(frozen=True, kw_only=True)
class SetDistance(FolderMetric):
    """A distance between the features of two sets of pictures; its network extracts them.

    Attributes:
        accumulator: of an extractor and the seed of whatever chance there is, makes what gives the
            distance of two sets that come in batches.
        to_reference: of the reference's features, float64 `[M, D]`, makes the distance of others
            `[N, D]` to them.
        too_few: whether sets of so many pictures say little of a distance of so many features.
    """

    single = False

    needs: tuple[str, ...] = ("images", "reference")
    larger_is_better: bool = False
    accumulator: Callable[[FeatureExtractor, int], SetAccumulator[Any]]
    to_reference: Callable[[Array], Callable[[Any], float]]
    too_few: Callable[[int, int], bool] = lambda count, features: False

    def weights_of(self, judge: str = "") -> Mapping[str, str]:
        weights = FEATURES.get(self.network).weights
        return {self.network: weights} if weights else {}

    def check(self, job: FolderJob) -> None:
        for folder in (job.images, job.reference):
            if len(folder) < 2:
                raise InputError(f"{self.name} needs 2 pictures or more: {folder.folder} has 1")

    def score(self, group: Sequence[Any], job: FolderJob) -> Scored:
        """The features are made once for all distances."""
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
