"""Kernel distance between two sets of pictures: an unbiased estimate, so small sets are fair.

Bińkowski et al. 2018, "Demystifying MMD GANs", section 4. It is KID over Inception-v3's pool
features only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .features import SetDistance, as_float64, is_inception, slug

if TYPE_CHECKING:
    from torch import Tensor

    from ...rewards.base import FeatureExtractor, Images

Array = NDArray[np.float64]


def polynomial_mmd(x: Array, y: Array) -> float:
    """Unbiased squared maximum mean discrepancy under `k(a, b) = (aᵀb / D + 1)³`.

    `Σ_{i≠j} k(xᵢ, xⱼ) / m(m−1) + Σ_{i≠j} k(yᵢ, yⱼ) / n(n−1) − 2 Σ k(xᵢ, yⱼ) / mn`; below 0 at
    times, as an unbiased estimate of 0 must be.

    Args:
        x, y: features `[m, D]` and `[n, D]`, two rows or more each.
    """
    within = sum(
        (gram.sum() - np.trace(gram)) / (len(gram) * (len(gram) - 1))
        for gram in (_kernel(x, x), _kernel(y, y))
    )
    return float(within - 2 * _kernel(x, y).mean())


class KernelDistance:
    """Kernel distance between real and generated pictures: its mean over random subsets.

    Args:
        extractor: all features are kept, float64 `[N, D]` a set.
        subsets, subset_size: 100 of 1000 pictures is what papers report. Sets that are smaller
            shrink the subsets, and `notes` says so.
        seed: of the choice of subsets.

    Attributes:
        name: `kid` for Inception-v3, otherwise `kid_<extractor>`.
    """

    def __init__(
        self,
        extractor: FeatureExtractor,
        subsets: int = 100,
        subset_size: int = 1000,
        seed: int = 0,
    ) -> None:
        if subsets < 1 or subset_size < 2:
            raise InputError(f"{subsets} subsets of {subset_size} pictures give no kernel distance")
        self.extractor = extractor
        self.subsets, self.subset_size, self.seed = subsets, subset_size, seed
        inception = is_inception(extractor.name)
        self.name = "kid" if inception else f"kid_{slug(extractor.name)}"
        self.reset()

    def reset(self) -> None:
        """Forget all pictures."""
        self._real: list[Array] = []
        self._generated: list[Array] = []

    def update(self, images: Images, real: bool) -> None:
        """Add pictures to one of the two sets."""
        self.add(self.extractor.features(images), real)

    def add(self, features: Tensor, real: bool) -> None:
        """Add features `[N, D]` that the extractor has already given."""
        batches = self._real if real else self._generated
        batches.append(as_float64(features, self.extractor.name))

    def compute(self) -> dict[str, float]:
        """The mean over the subsets under `name`, and their standard deviation under `<name>_std`.

        Subsets overlap, so the deviation is that of one subset's estimate, not the mean's error.
        Where both sets are no larger than one subset there is one estimate and no deviation.

        Raises:
            InputError: a set of fewer than two pictures.
        """
        for kind, n in self._counts().items():
            if n < 2:
                raise InputError(f"{self.name} needs 2 {kind} pictures or more, got {n}")
        real, generated = np.concatenate(self._real), np.concatenate(self._generated)
        size = self._size()
        if len(real) == len(generated) == size:  # every subset is the whole
            return {self.name: polynomial_mmd(real, generated)}
        rng = np.random.default_rng(self.seed)
        estimates = [
            polynomial_mmd(*(rng.choice(x, size, replace=False) for x in (real, generated)))
            for _ in range(self.subsets)
        ]
        deviation = float(np.std(estimates))
        return {self.name: float(np.mean(estimates)), f"{self.name}_std": deviation}

    def notes(self) -> list[str]:
        """What a reader must know before comparing the figure: subsets that had to shrink."""
        if self._size() == self.subset_size:
            return []
        counts = self._counts()
        shrunk = f"subsets of {self._size()} pictures, not {self.subset_size}"
        if counts["real"] == counts["generated"]:
            shrunk += ": each is the whole set, so there is one estimate and no deviation"
        return [shrunk]

    def _counts(self) -> dict[str, int]:
        sets = {"real": self._real, "generated": self._generated}
        return {kind: sum(map(len, batches)) for kind, batches in sets.items()}

    def _size(self) -> int:
        return min(self.subset_size, *self._counts().values())


@dataclass(frozen=True, kw_only=True)
class KernelMetric(SetDistance):
    """See `SetDistance`."""

    summary: str = "kernel distance of the pictures' features to the reference's, unbiased"

    def accumulator(self, extractor: FeatureExtractor, seed: int) -> KernelDistance:
        """See `SetDistance.accumulator`."""
        return KernelDistance(extractor, seed=seed)

    def to_reference(self, reference: Any) -> Callable[[Any], float]:
        """See `SetDistance.to_reference`: all pictures are one subset."""
        return lambda features: polynomial_mmd(reference, np.asarray(features, np.float64))


KID = KernelMetric(name="kid", network="inception-v3")
KID_SHAPES_CLIP = KernelMetric(name="kid_shapes_clip", network="shapes_clip")


def _kernel(x: Array, y: Array) -> Array:
    """`[m, n]`."""
    gram: Array = (x @ y.T / x.shape[1] + 1) ** 3
    return gram
