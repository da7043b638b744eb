"""Kernel distance: the definition entry by entry, and two other libraries on the same features.

Double precision against double precision holds to 1e-10, torchmetrics' single precision to 1e-4.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from mmspec.errors import InputError
from mmspec.eval.metrics.kid import KernelDistance, polynomial_mmd

DIM = 12


class Given(nn.Module):
    """Features that are given as they are."""

    name = "inception-v3-not-really"
    num_features = DIM

    def features(self, images):
        return images

    def forward(self, images):
        return images


@pytest.fixture
def features():
    generator = torch.Generator().manual_seed(0)
    real = torch.randn(60, DIM, generator=generator)
    return real, torch.randn(45, DIM, generator=generator) * 1.5 + 0.3


def measured(features, **options) -> KernelDistance:
    distance = KernelDistance(Given(), **options)
    for tensor, real in zip(features, (True, False), strict=True):
        for batch in tensor.split(13):
            distance.update(batch, real)
    return distance


def slow_mmd(x, y) -> float:
    """The unbiased estimate as its sums are written."""

    def kernel(a, b):
        return (sum(p * q for p, q in zip(a, b, strict=True)) / len(a) + 1) ** 3

    def within(z):
        pairs = [(i, j) for i in range(len(z)) for j in range(len(z)) if i != j]
        return sum(kernel(z[i], z[j]) for i, j in pairs) / (len(z) * (len(z) - 1))

    across = sum(kernel(a, b) for a in x for b in y) / (len(x) * len(y))
    return within(x) + within(y) - 2 * across


def test_definition():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(9, 5)), rng.normal(1, 2, size=(6, 5))
    assert polynomial_mmd(x, y) == pytest.approx(slow_mmd(x.tolist(), y.tolist()), rel=1e-12)


def test_kernel_of_torch_fidelity(features):
    from torch_fidelity.metric_kid import kernel_mmd

    x, y = (f[:45].double().numpy() for f in features)
    assert polynomial_mmd(x, y) == pytest.approx(kernel_mmd(x, y), rel=1e-10)


def test_no_bias():
    """Over many draws from one law the estimate is 0 on average, and often below 0."""
    rng = np.random.default_rng(1)
    found = [polynomial_mmd(*rng.normal(size=(2, 10, 4))) for _ in range(2000)]
    assert abs(np.mean(found)) < 4 * np.std(found) / 2000**0.5
    assert 0.3 < np.mean(np.array(found) < 0) < 0.9


def test_whole_sets_as_in_torch_fidelity(features):
    """Subsets as large as both sets: nothing is left to chance."""
    from torch_fidelity.metric_kid import kid_features_to_metric

    pair = [f[:45] for f in features]
    oracle = kid_features_to_metric(
        *(f.double() for f in pair), kid_subsets=3, kid_subset_size=45, verbose=False
    )
    found = measured(pair).compute()
    expected = oracle["kernel_inception_distance_mean"]
    assert found == {"kid": pytest.approx(expected, rel=1e-10)}  # one estimate has no deviation


@pytest.mark.filterwarnings("ignore:Metric `Kernel Inception Distance` will save")
def test_whole_sets_as_in_torchmetrics(features):
    from torchmetrics.image.kid import KernelInceptionDistance

    pair = [f[:45] for f in features]
    oracle = KernelInceptionDistance(feature=Given(), subsets=2, subset_size=45)
    for tensor, real in zip(pair, (True, False), strict=True):
        oracle.update(tensor, real=real)
    mean, _ = oracle.compute()
    assert measured(pair).compute()["kid"] == pytest.approx(float(mean), rel=1e-4)


def test_subsets_as_in_torch_fidelity(features):
    """Other subsets of the same sets: both means within 5 standard errors of the whole's estimate.

    An average over all subsets is the estimate over the whole, since each is unbiased given it.
    """
    from torch_fidelity.metric_kid import kid_features_to_metric

    count = 400
    oracle = kid_features_to_metric(
        *(f.double() for f in features), kid_subsets=count, kid_subset_size=20, verbose=False
    )
    found = measured(features, subsets=count, subset_size=20).compute()
    whole = polynomial_mmd(*(f.double().numpy() for f in features))
    error = found["kid_std"] / count**0.5
    assert abs(found["kid"] - whole) < 5 * error
    assert abs(oracle["kernel_inception_distance_mean"] - whole) < 5 * error
    assert found["kid_std"] == pytest.approx(oracle["kernel_inception_distance_std"], rel=0.2)


def test_seed(features):
    options = dict(subsets=5, subset_size=20)
    one, same, other = (measured(features, seed=s, **options).compute() for s in (1, 1, 2))
    assert one == same
    assert one["kid"] != other["kid"]


def test_shrunk_subsets_are_noted(features):
    assert measured(features, subset_size=45).notes() == []
    assert measured(features).notes() == ["subsets of 45 pictures, not 1000"]
    (note,) = measured([f[:45] for f in features]).notes()
    assert "each is the whole set, so there is one estimate and no deviation" in note


def test_unequal_sets_shrink_to_the_smaller(features):
    found = measured(features, subsets=50).compute()
    assert found["kid_std"] > 0
    assert found["kid"] == measured(features, subsets=50, subset_size=45).compute()["kid"]


def test_name_of_other_features():
    given = Given()
    given.name = "shapes-clip"
    assert KernelDistance(given).name == "kid_shapes_clip"


def test_faults(features):
    with pytest.raises(InputError, match="0 subsets of 1000 pictures"):
        KernelDistance(Given(), subsets=0)
    with pytest.raises(InputError, match="of 1 pictures"):
        KernelDistance(Given(), subset_size=1)
    distance = measured(features)
    distance.reset()
    with pytest.raises(InputError, match="kid needs 2 real pictures or more, got 0"):
        distance.compute()
    with pytest.raises(InputError, match="not finite"):
        distance.add(torch.tensor([[float("inf")]]), real=False)
