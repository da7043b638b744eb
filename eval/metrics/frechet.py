"""Fréchet distance between two sets of pictures, each seen as a Gaussian in feature space.

Heusel et al. 2017, "GANs Trained by a Two Time-Scale Update Rule Converge to a Local Nash
Equilibrium", equation 6. It is FID over Inception-v3's pool features only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .features import Array, SetAccumulator, SetDistance

_USUAL = 10_000  # pictures a set that Heusel et al. ask for at least


def frechet_distance(mean1: Array, cov1: Array, mean2: Array, cov2: Array) -> float:
    """`|m1 − m2|² + tr C1 + tr C2 − 2 tr (C1 C2)^½`, in double precision.

    With any factors `C = L Lᵀ` the last trace is the sum of the singular values of `L1ᵀ L2`. That
    stays real and finite for singular covariances, where a matrix root of the product needs a
    multiple of the identity added and the imaginary part dropped, and it takes no root of rounding
    errors, as the eigenvalues of the product do.

    Args:
        mean1, mean2: `[D]`.
        cov1, cov2: `[D, D]`, symmetric and positive semidefinite.
    """
    mean1, mean2, cov1, cov2 = (np.asarray(a, np.float64) for a in (mean1, mean2, cov1, cov2))
    dim = len(mean1)
    if mean1.shape != (dim,) or mean2.shape != (dim,):
        raise ValueError(f"means have shapes {mean1.shape} and {mean2.shape}")
    if cov1.shape != (dim, dim) or cov2.shape != (dim, dim):
        raise ValueError(f"covariances have shapes {cov1.shape} and {cov2.shape}, not D = {dim}")
    overlap = np.linalg.svd(_factor(cov1).T @ _factor(cov2), compute_uv=False).sum()
    offset = mean1 - mean2
    distance = offset @ offset + np.trace(cov1) + np.trace(cov2) - 2 * overlap
    return max(float(distance), 0.0)  # equal Gaussians may come out a rounding error below


class Moments:
    """Mean and covariance of vectors that come in batches, in double precision.

    Batches are merged around their own means (Chan, Golub & LeVeque 1979, "Updating Formulae and a
    Pairwise Algorithm for Computing Sample Variances"), since sums of squares cancel when the mean
    is large.

    Attributes:
        n: vectors so far.
        mean: `[D]`; empty before the first batch.
    """

    def __init__(self) -> None:
        self.n = 0
        self.mean: Array = np.zeros(0)
        self._scatter: Array = np.zeros((0, 0))

    def update(self, batch: Array) -> None:
        """Add vectors `[N, D]`."""
        if not len(batch):
            return
        if not self.n:
            dim = batch.shape[1]
            self.mean, self._scatter = np.zeros(dim), np.zeros((dim, dim))
        mean = batch.mean(0)
        centred, offset, total = batch - mean, mean - self.mean, self.n + len(batch)
        self._scatter += centred.T @ centred
        self._scatter += np.outer(offset, offset) * (self.n * len(batch) / total)
        self.mean = self.mean + offset * (len(batch) / total)
        self.n = total

    @property
    def covariance(self) -> Array:
        """Unbiased, `[D, D]`; needs two vectors."""
        return self._scatter / (self.n - 1)


class FrechetDistance(SetAccumulator[Moments]):
    """Fréchet distance between real and generated pictures, accumulated in batches."""

    names = ("fid", "frechet")
    set_class = Moments

    def distance(self, real: Moments, generated: Moments) -> dict[str, float]:
        laws = real.mean, real.covariance, generated.mean, generated.covariance
        return {self.name: frechet_distance(*laws)}

    def notes(self) -> list[str]:
        notes = []
        for kind, moments in self.sets.items():
            dim = len(moments.mean)
            if moments.n <= dim:
                notes.append(
                    f"{moments.n} {kind} pictures for {dim} features: the covariance has no full "
                    "rank and the distance is far too large; compare it at equal counts only"
                )
            elif moments.n < _USUAL:
                notes.append(
                    f"{moments.n} {kind} pictures, {_USUAL} or more are usual: the distance is "
                    "too large; compare it at equal counts only"
                )
        return notes


def _to_reference(reference: Array) -> Callable[[Any], float]:
    mean, covariance = reference.mean(0), np.cov(reference, rowvar=False)

    def distance(features: Any) -> float:
        ours = np.asarray(features, np.float64)
        return frechet_distance(mean, covariance, ours.mean(0), np.cov(ours, rowvar=False))

    return distance


FID = SetDistance(
    name="fid",
    network="inception-v3",
    summary="Fréchet distance of the pictures' features to the reference's",
    bounds=(0, math.inf),
    accumulator=lambda extractor, seed: FrechetDistance(extractor),
    to_reference=_to_reference,
    too_few=lambda count, features: count <= features,  # the covariance has no full rank
)
FRECHET_SHAPES_CLIP = replace(FID, name="frechet_shapes_clip", network="shapes_clip")


def _factor(cov: Array) -> Array:
    """`L [D, R]` with `L Lᵀ = cov` for a covariance of rank R.

    Eigenvalues that rounding alone can cause count as 0: their roots would not be small.
    """
    values, vectors = np.linalg.eigh(cov)
    kept = values > len(values) * np.finfo(np.float64).eps * max(values[-1], 0.0)
    return vectors[:, kept] * np.sqrt(values[kept])
