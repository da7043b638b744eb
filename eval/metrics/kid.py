"""Kernel distance between two sets of pictures: an unbiased estimate, so small sets are fair.

Bińkowski et al. 2018, "Demystifying MMD GANs", section 4. It is KID over Inception-v3's pool
features only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ...errors import InputError
from .features import Array, SetAccumulator, SetDistance

if TYPE_CHECKING:
    from ...rewards.base import FeatureExtractor


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


class Batches(list[Array]):
    """Features `[N, D]` of a set, batch by batch."""

    update = list.append

    @property
    def n(self) -> int:
        return sum(map(len, self))


class KernelDistance(SetAccumulator[Batches]):
    """Kernel distance between real and generated pictures: its mean over random subsets.

    Args:
        extractor: all features are kept, float64 `[N, D]` a set.
        subsets, subset_size: 100 of 1000 pictures is what papers report. Sets that are smaller
            shrink the subsets, and `notes` says so.
        seed: of the choice of subsets.
    """

    names = ("kid", "kid")
    set_class = Batches

    def __init__(
        self,
        extractor: FeatureExtractor,
        subsets: int = 100,
        subset_size: int = 1000,
        seed: int = 0,
    ) -> None:
        if subsets < 1 or subset_size < 2:
            raise InputError(f"{subsets} subsets of {subset_size} pictures give no kernel distance")
        super().__init__(extractor)
        self.subsets, self.subset_size, self.seed = subsets, subset_size, seed

    def distance(self, real: Batches, generated: Batches) -> dict[str, float]:
        """The mean over the subsets under `name`, and their standard deviation under `<name>_std`.

        Subsets overlap, so the deviation is that of one subset's estimate, not the mean's error.
        Where both sets are no larger than one subset there is one estimate and no deviation.
        """
        both, size = (np.concatenate(real), np.concatenate(generated)), self._size()
        if all(len(features) == size for features in both):  # every subset is the whole
            return {self.name: polynomial_mmd(*both)}
        rng = np.random.default_rng(self.seed)
        estimates = [
            polynomial_mmd(*(rng.choice(x, size, replace=False) for x in both))
            for _ in range(self.subsets)
        ]
        deviation = float(np.std(estimates))
        return {self.name: float(np.mean(estimates)), f"{self.name}_std": deviation}

    def notes(self) -> list[str]:
        if self._size() == self.subset_size:
            return []
        shrunk = f"subsets of {self._size()} pictures, not {self.subset_size}"
        if self.sets["real"].n == self.sets["generated"].n:
            shrunk += ": each is the whole set, so there is one estimate and no deviation"
        return [shrunk]

    def _size(self) -> int:
        return min(self.subset_size, *(known.n for known in self.sets.values()))


KID = SetDistance(
    name="kid",
    network="inception-v3",
    summary="kernel distance of the pictures' features to the reference's, unbiased",
    accumulator=lambda extractor, seed: KernelDistance(extractor, seed=seed),
    # all pictures are one subset
    to_reference=lambda reference: (
        lambda features: polynomial_mmd(reference, np.asarray(features, np.float64))
    ),
)
KID_SHAPES_CLIP = replace(KID, name="kid_shapes_clip", network="shapes_clip")


def _kernel(x: Array, y: Array) -> Array:
    """`[m, n]`."""
    return (x @ y.T / x.shape[1] + 1) ** 3
