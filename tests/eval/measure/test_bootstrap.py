"""Intervals against slow ones and known truths; what they allow to say."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest

from mmspec.eval.measure.bootstrap import (
    StratifiedMean,
    interval,
    ratio_interval,
    samples_to_decide,
    verdict,
)


def slow_interval(ratios: list[float], rounds: int) -> tuple[float, float]:
    """Percentile bootstrap of the median, one resample at a time, with Python's own dice."""
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(rounds))
    return medians[int(0.025 * rounds)], medians[int(0.975 * rounds)]


@pytest.mark.parametrize("n", [5, 30, 101])
def test_interval_against_a_slow_bootstrap(n):
    ratios = np.exp(np.random.default_rng(n).normal(0.3, 0.2, n)).tolist()
    middle, (low, high) = ratio_interval(ratios)
    assert middle == statistics.median(ratios)
    truth = slow_interval(ratios, 4000)
    assert (low, high) == pytest.approx(truth, abs=0.03)
    assert min(ratios) <= low < middle < high <= max(ratios)


def test_known_intervals():
    assert ratio_interval([1.5]) == (1.5, (1.5, 1.5))
    assert ratio_interval([2.0] * 9) == (2.0, (2.0, 2.0))
    # the median of three draws from two values: both are within reach of 2.5 %
    assert ratio_interval([1.0, 1.0, 3.0]) == (1.0, (1.0, 3.0))
    assert ratio_interval([1.0, 2.0, 3.0]) == ratio_interval([1.0, 2.0, 3.0])


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        values = rng.normal(1.0, 0.1, 50)
        low, high = interval(lambda i, v=values: np.median(v[i], axis=1), 50, rounds=300)
        held += low <= 1.0 <= high
    assert 0.90 <= held / 300 <= 0.99


def test_strata_weigh_the_same_whatever_their_size():
    values, strata = np.array([1.0, 1.0, 1.0, 0.0]), ["a", "a", "a", "b"]
    means = StratifiedMean(strata)
    assert (means(values), means.fewest) == (0.5, 1)
    assert StratifiedMean([""] * 4)(values) == 0.75
    # nothing varies within a stratum, so no resample differs
    assert means.interval(values) == pytest.approx((0.5, 0.5))


def test_stratified_interval_against_the_formula():
    rng = np.random.default_rng(1)
    strata = ["a"] * 300 + ["b"] * 100
    values = np.concatenate([rng.random(300) < 0.9, rng.random(100) < 0.3]).astype(float)
    low, high = StratifiedMean(strata).interval(values)
    p, q = values[:300].mean(), values[300:].mean()
    spread = 1.96 * (p * (1 - p) / 300 / 4 + q * (1 - q) / 100 / 4) ** 0.5
    assert (low, high) == pytest.approx(((p + q) / 2 - spread, (p + q) / 2 + spread), abs=0.01)


def test_whole_clusters_are_resampled():
    """Samples of one prompt that always agree count as one: the interval is that of the prompts."""
    rng = np.random.default_rng(2)
    prompts = (rng.random(50) < 0.5).astype(float)
    values, clusters = np.repeat(prompts, 9), np.repeat(np.arange(50), 9)
    low, high = StratifiedMean([""] * 450, clusters.tolist()).interval(values)
    spread = 1.96 * (0.25 / 50) ** 0.5
    assert (high - low) / 2 == pytest.approx(spread, rel=0.1)
    narrow = StratifiedMean([""] * 450).interval(values)
    assert (narrow[1] - narrow[0]) / 2 == pytest.approx(spread / 3, rel=0.1)


def test_clusters_of_unequal_size_weigh_by_their_samples():
    means = StratifiedMean([""] * 4, ["p", "p", "p", "q"])
    values = np.array([1.0, 1.0, 0.0, 0.0])
    assert (means(values), means.fewest) == (0.5, 2)
    # resamples: p and q (1/2), p twice (2/3), q twice (0)
    assert means.interval(values) == pytest.approx((0, 2 / 3))


def test_large_clusters_weigh_more_in_resamples_too():
    """Ten samples in ten clusters and ninety in ten others: a mean of clusters' means says 1/2."""
    clusters = [*range(10), *(10 + i // 9 for i in range(90))]
    values = np.array([0.0] * 10 + [1.0] * 90)
    means = StratifiedMean([""] * 100, clusters)
    dice, resampled = random.Random(0), []
    for _ in range(4000):
        sizes = [9 if cluster >= 10 else 1 for cluster in dice.choices(range(20), k=20)]
        resampled.append(sum(n for n in sizes if n == 9) / sum(sizes))
    low, high = np.percentile(resampled, [2.5, 97.5])
    assert means(values) == 0.9
    assert means.interval(values) == pytest.approx((low, high), abs=0.02)
    assert low > 0.7


def test_values_that_never_vary_prove_only_so_much():
    """The rule of three: none of 600 differed, so up to three in 600 may."""
    means = StratifiedMean([""] * 600)
    assert means.interval(np.zeros(600)) == (-0.005, 0.005)
    assert means.interval(np.ones(600)) == (0.995, 1.005)
    assert verdict(means.interval(np.zeros(600)), 0.02) == "within 0.02"


def test_values_that_never_vary_are_as_many_as_their_clusters():
    """Forty pictures of each of five prompts prove what five prompts do."""
    means = StratifiedMean([""] * 200, [i // 40 for i in range(200)])
    assert means.interval(np.zeros(200)) == pytest.approx((-0.6, 0.6))


def test_values_that_never_vary_may_hide_others_of_their_whole_span():
    """On DPG's scale, from 0 to 100, three of 60 are worth 5."""
    means = StratifiedMean([""] * 60)
    assert means.interval(np.zeros(60), 100.0) == pytest.approx((-5, 5))
    assert means.interval(np.full(60, 100.0), 100.0) == pytest.approx((95, 105))
    assert means.interval(np.full(60, 25.0)) == pytest.approx((25 - 1.25, 25 + 1.25))


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ((-0.05, -0.01), "no loss"),
        ((-0.05, 0.0), "no loss"),
        ((-0.05, 0.02), "within 0.02"),
        ((0.01, 0.015), "within 0.02"),
        ((-0.05, 0.021), "undecided"),
        ((0.01, 0.05), "undecided"),
        ((0.021, 0.05), "worse"),
    ],
)
def test_claims_are_about_the_whole_interval(loss, said):
    assert verdict(loss, 0.02) == said


def test_samples_that_would_decide():
    # half width 0.04 around 0: to get it to 0.01 takes (0.04 / 0.01)² times as many
    assert samples_to_decide((-0.04, 0.04), 0.01, 100) == 1600
    assert samples_to_decide((-0.01, 0.01), 0.02, 100) == 100
    assert samples_to_decide((0.02, 0.02), 0.02, 100) == 100
    assert samples_to_decide((0.01, 0.03), 0.02, 100) > 10_000
