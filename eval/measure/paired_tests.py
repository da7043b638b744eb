"""Tests of paired samples, and the correction for many of them.

McNemar 1947 in its exact form for scores of right and wrong, a sign-flip test of the mean
difference for other scores, Wilcoxon's signed-rank test of the log ratio for times.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .bootstrap import Array, numbered

RESAMPLES = 9999  # sign flips drawn where there are more than can be listed


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the k-th smallest of m p-values times m − k + 1, never falling.

    Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure".
    """
    corrected, worst = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = worst
    return corrected


def paired_test(a: Array, b: Array, clusters: Sequence[object] | None = None) -> tuple[str, float]:
    """The test that suits paired scores `[n]`, and its two-sided p-value.

    Scores of right and wrong (1 and 0): the exact McNemar test, a binomial test of the pairs that
    differ. Others: the mean difference under signs flipped at random, as they would be if A and B
    were one method; all combinations up to 13 pairs, else 9999 drawn ones.

    Args:
        clusters: what each pair shares with others, such as its prompt: their differences are
            alike, so that the signs of whole clusters are flipped. None: no two share anything.
    """
    from scipy import stats

    change = b - a
    numbers = np.arange(len(change)) if clusters is None else numbered(clusters)
    if len(change) > numbers.max() + 1:
        change = np.bincount(numbers, change)
    elif np.isin([a, b], (0.0, 1.0)).all():
        up, down = int((change > 0).sum()), int((change < 0).sum())
        return "McNemar", float(stats.binomtest(up, up + down).pvalue) if up + down else 1.0
    if not change.any():
        return "sign flip", 1.0
    found = stats.permutation_test(
        (change,),
        lambda x, axis: np.mean(x, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=1000,
        random_state=0,
    )
    return "sign flip", float(found.pvalue)


def ratio_test(ratios: Array) -> tuple[str, float]:
    """Wilcoxon's signed-rank test of the log ratios `[n]`, two-sided.

    Exact up to 50 pairs without ties, else by the normal approximation.
    """
    from scipy import stats

    logs = np.log(ratios)
    return "Wilcoxon", float(stats.wilcoxon(logs).pvalue) if logs.any() else 1.0
