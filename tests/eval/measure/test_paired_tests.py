"""Paired tests against enumeration and closed forms, and Holm's correction by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from mmspec.eval.measure.paired_tests import holm, paired_test, ratio_test

RNG = np.random.default_rng(5)


@pytest.mark.parametrize(
    ("p_values", "corrected"),
    [
        # smallest first: 4 × 0.005, 3 × 0.01, 2 × 0.03, then 0.04, which may not fall below 0.06
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.5, 0.6], [1.0, 1.0]),
        ([0.02], [0.02]),
        ([0.02, 0.02], [0.04, 0.04]),
        ([], []),
    ],
)
def test_holm_by_hand(p_values, corrected):
    assert holm(p_values) == pytest.approx(corrected, abs=1e-12)


@pytest.mark.parametrize(("up", "down", "same"), [(9, 2, 30), (3, 3, 0), (0, 5, 4), (40, 21, 200)])
def test_right_and_wrong_by_the_binomial_law(up, down, same):
    a = np.array([0.0] * up + [1.0] * down + [1.0] * same)
    b = np.array([1.0] * up + [0.0] * down + [1.0] * same)
    name, p = paired_test(a, b)
    assert name == "McNemar"
    tail = stats.binom.cdf(min(up, down), up + down, 0.5)
    assert p == pytest.approx(min(1.0, 2 * tail), abs=1e-12)
    assert paired_test(b, a)[1] == pytest.approx(p, abs=1e-12)


def test_scores_by_all_flips_of_signs():
    a, b = RNG.normal(size=(2, 9)).round(2)
    change = b - a
    flipped = np.array([abs(np.dot(s, change)) for s in product((-1, 1), repeat=9)])
    expected = np.mean(flipped >= abs(change.sum()) - 1e-12)
    name, p = paired_test(a, b)
    assert name == "sign flip"
    assert p == pytest.approx(expected, abs=1e-12)


def test_scores_of_many_pairs_near_the_normal_law():
    change = RNG.normal(0.1, 1, 400)
    z = change.sum() / np.sqrt((change**2).sum())  # under flipped signs: mean 0, this deviation
    _, p = paired_test(np.zeros(400), change)
    assert p == pytest.approx(2 * stats.norm.sf(abs(z)), abs=0.015)  # three deviations of 9999
    assert paired_test(np.zeros(400), change)[1] == p


def test_ratios_by_all_signs_of_the_ranks():
    ratios = np.exp(RNG.normal(0.3, 1, 10))
    logs = np.log(ratios)
    ranks = stats.rankdata(abs(logs))
    sums = np.array([np.dot(s, ranks) for s in product((0, 1), repeat=10)])
    seen = ranks[logs > 0].sum()
    expected = min(1.0, 2 * min(np.mean(sums >= seen), np.mean(sums <= seen)))
    name, p = ratio_test(ratios)
    assert name == "Wilcoxon"
    assert p == pytest.approx(expected, abs=1e-12)


def test_no_difference_is_no_evidence():
    scores = np.array([0.5, 2.0])
    assert paired_test(scores, scores) == ("sign flip", 1.0)
    assert paired_test(np.ones(3), np.ones(3)) == ("McNemar", 1.0)
    assert ratio_test(np.ones(3)) == ("Wilcoxon", 1.0)


def test_pictures_of_one_prompt_are_one_observation():
    """Of ten prompts three are better in all four pictures: three heads of three coins."""
    a, b = np.zeros(40), np.repeat([1.0] * 3 + [0.0] * 7, 4)
    prompts = [f"prompt {i // 4}" for i in range(40)]
    assert paired_test(a, b, prompts) == ("sign flip", pytest.approx(0.25))
    assert paired_test(a, b)[1] == pytest.approx(2 * 0.5**12)
    assert paired_test(a, b, range(40)) == paired_test(a, b)


def test_differences_that_cancel_within_prompts_are_no_evidence():
    a, b = np.array([0.0, 1.0] * 6), np.array([1.0, 0.0] * 6)
    assert paired_test(a, b, np.repeat(range(6), 2)) == ("sign flip", 1.0)
