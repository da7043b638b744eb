"""Fréchet distance: closed forms, other roots of the same product, and two other libraries.

Closed forms hold to 1e-10, the libraries to 1e-6, both relative to the traces.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import ImageFilter
from torch import nn

from mmspec.errors import InputError
from mmspec.eval.metrics.frechet import FrechetDistance, Moments, frechet_distance
from mmspec.rewards.base import to_uint8

DIM = 24


class Patches(nn.Module):
    """Real features of real pictures without a network: projections of a 6×6 thumbnail."""

    name = "inception-v3-not-really"
    num_features = DIM  # torchmetrics asks for it

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("project", torch.randn(108, DIM, generator=generator) / 10)

    def features(self, images) -> torch.Tensor:
        small = nn.functional.adaptive_avg_pool2d(to_uint8(images).float() / 255, 6)
        return small.flatten(1) @ self.project

    def forward(self, images) -> torch.Tensor:
        return self.features(images)


@pytest.fixture
def sets(crops):
    """Two sets of pictures: crops, and fewer crops with some blur."""
    return crops, [crop.filter(ImageFilter.GaussianBlur(3)) for crop in crops[:50]]


def covariance(rng, dim, rank=None):
    half = rng.normal(size=(dim, rank or dim))
    return half @ half.T


def test_one_dimension():
    """(m1 − m2)² + (s1 − s2)² with deviations s."""
    distance = frechet_distance(np.array([3.0]), np.array([[4.0]]), np.array([1.0]), np.eye(1) * 25)
    assert distance == pytest.approx(2**2 + 3**2, rel=1e-12)


def test_diagonal():
    rng = np.random.default_rng(0)
    m1, m2, s1, s2 = (rng.uniform(0, 3, 50) for _ in range(4))
    expected = ((m1 - m2) ** 2).sum() + ((s1 - s2) ** 2).sum()
    found = frechet_distance(m1, np.diag(s1**2), m2, np.diag(s2**2))
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_two_dimensions_that_do_not_commute(seed):
    """tr (C1 C2)^½ = (tr C1 C2 + 2 (det C1 C2)^½)^½ for 2×2 matrices."""
    rng = np.random.default_rng(seed)
    c1, c2 = covariance(rng, 2), covariance(rng, 2)
    assert np.abs(c1 @ c2 - c2 @ c1).max() > 1e-3
    product = c1 @ c2
    root = math.sqrt(np.trace(product) + 2 * math.sqrt(np.linalg.det(product)))
    expected = np.trace(c1) + np.trace(c2) - 2 * root
    found = frechet_distance(np.zeros(2), c1, np.zeros(2), c2)
    assert found == pytest.approx(expected, abs=1e-10 * np.trace(c1 + c2))


def test_matrix_root_of_scipy():
    from scipy.linalg import sqrtm

    rng = np.random.default_rng(1)
    c1, c2 = covariance(rng, 40, 80), covariance(rng, 40, 80)
    m1, m2 = rng.normal(size=(2, 40))
    expected = ((m1 - m2) ** 2).sum() + np.trace(c1 + c2 - 2 * sqrtm(c1 @ c2).real)
    assert frechet_distance(m1, c1, m2, c2) == pytest.approx(expected, rel=1e-10)


def test_rank_one():
    """tr (uuᵀ vvᵀ)^½ = |uᵀv|, where a matrix root of the product does not exist in general."""
    u, v = np.random.default_rng(2).normal(size=(2, 64))
    found = frechet_distance(np.zeros(64), np.outer(u, u), np.zeros(64), np.outer(v, v))
    assert found == pytest.approx(u @ u + v @ v - 2 * abs(u @ v), rel=1e-10)


def test_fewer_samples_than_dimensions():
    """The same trace from the samples alone: singular values of `X1 X2ᵀ`, centred."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(20, 200)), rng.normal(2, 3, size=(30, 200))
    a, b = x - x.mean(0), y - y.mean(0)
    root = np.linalg.svd(a @ b.T, compute_uv=False).sum() / math.sqrt(19 * 29)
    spread = (a**2).sum() / 19 + (b**2).sum() / 29
    expected = ((x.mean(0) - y.mean(0)) ** 2).sum() + spread - 2 * root
    found = frechet_distance(x.mean(0), np.cov(x.T), y.mean(0), np.cov(y.T))
    assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("rank", [3, 64])
def test_equal_gaussians(rank):
    rng = np.random.default_rng(4)
    mean, cov = rng.normal(size=64), covariance(rng, 64, rank)
    assert 0 <= frechet_distance(mean, cov, mean, cov) < 1e-10 * np.trace(cov)


def test_nothing_varies():
    zero = np.zeros((3, 3))
    assert frechet_distance(np.zeros(3), zero, np.ones(3), zero) == pytest.approx(3)


def test_misshapen():
    with pytest.raises(ValueError, match="means have shapes"):
        frechet_distance(np.zeros(2), np.eye(2), np.zeros(3), np.eye(3))
    with pytest.raises(ValueError, match=r"covariances .* not D = 2"):
        frechet_distance(np.zeros(2), np.eye(2), np.zeros(2), np.eye(3))


@pytest.mark.parametrize("batches", [[100], [1] * 100, [7, 0, 60, 33]])
def test_moments_in_batches(batches):
    """NumPy's two passes over the whole, with a mean that is 1e7 times the deviation."""
    data = np.random.default_rng(5).normal(1e7, 1, size=(100, 6))
    moments = Moments()
    for part in np.split(data, np.cumsum(batches)[:-1]):
        moments.update(part)
    assert moments.n == 100
    np.testing.assert_allclose(moments.mean, data.mean(0), rtol=1e-14)
    np.testing.assert_allclose(moments.covariance, np.cov(data.T), atol=1e-6)


def measured(sets, batch=11) -> FrechetDistance:
    distance = FrechetDistance(Patches())
    for images, real in zip(sets, (True, False), strict=True):
        for first in range(0, len(images), batch):
            distance.update(images[first : first + batch], real)
    return distance


def test_torch_fidelity_on_the_same_features(sets):
    from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric

    stats = [fid_features_to_statistics(Patches().features(s).double()) for s in sets]
    expected = fid_statistics_to_metric(*stats, verbose=False)["frechet_inception_distance"]
    found = measured(sets).compute()
    assert found == {"fid": pytest.approx(expected, rel=1e-6)}
    assert expected > 1e-3


def test_torchmetrics_on_the_same_pictures(sets):
    from torchmetrics.image.fid import FrechetInceptionDistance

    oracle = FrechetInceptionDistance(feature=Patches())
    for images, real in zip(sets, (True, False), strict=True):
        oracle.update(to_uint8(images), real=real)
    assert measured(sets).compute()["fid"] == pytest.approx(float(oracle.compute()), rel=1e-6)


def test_more_blur_is_further(crops):
    found = []
    for radius in (0.5, 1, 3, 8):
        blurred = [crop.filter(ImageFilter.GaussianBlur(radius)) for crop in crops]
        found.append(measured((crops, blurred)).compute()["fid"])
    assert found == sorted(found)
    assert found[0] < found[-1] / 10


@pytest.mark.parametrize(
    ("extractor", "name"),
    [
        ("inception-v3-compat-tf-bilinear", "fid"),
        ("CLIP ViT-L/14", "frechet_clip_vit_l_14"),
        ("shapes_clip", "frechet_shapes_clip"),
    ],
)
def test_only_inception_gives_fid(extractor, name):
    patches = Patches()
    patches.name = extractor
    assert FrechetDistance(patches).name == name


def test_small_sets_are_noted(sets):
    distance = FrechetDistance(Patches())
    distance.update(sets[0], real=True)
    distance.update(sets[1][:DIM], real=False)
    usual, deficient = distance.notes()
    assert "64 real pictures, 10000 or more" in usual
    assert f"{DIM} generated pictures for {DIM} features: the covariance has no full" in deficient
    distance.add(torch.randn(10_001, DIM), real=False)
    assert len(distance.notes()) == 1


def test_too_few_and_reset(sets):
    distance = measured(sets)
    distance.reset()
    distance.update(sets[0], real=True)
    distance.update(sets[1][:1], real=False)
    with pytest.raises(InputError, match="fid needs 2 generated pictures or more, got 1"):
        distance.compute()


def test_features_that_are_not_finite():
    with pytest.raises(InputError, match=r"not finite: check its weights"):
        FrechetDistance(Patches()).add(torch.tensor([[1.0, math.nan]]), real=True)
    with pytest.raises(ValueError, match=r"expected features \[N, D\]"):
        FrechetDistance(Patches()).add(torch.zeros(2, 3, 4), real=True)
