"""Intervals by resampling, and what they allow to say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Interval = tuple[float, float]

ROUNDS = 2000
FEWEST_PAIRS = 6  # an interval of fewer looks surer than it is
FEWEST_CLUSTERS = 5  # of a stratum, such as prompts of a task: for the same reason


def interval(
    statistic: Callable[[Array], Array], n: int, seed: int = 0, rounds: int = ROUNDS
) -> Interval:
    """95 % percentile-bootstrap interval of a statistic of n samples.

    Args:
        statistic: takes indices `[rounds, n]`, a resample a row, and returns `[rounds]`.
        n: samples.
    """
    return middle_95(statistic(np.random.default_rng(seed).integers(0, n, (rounds, n))))


def middle_95(values: Array | Sequence[float]) -> Interval:
    """Bounds of the middle 95 % of some values."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def known_interval(statistic: Callable[[Array], Array], n: int) -> Interval | None:
    """`interval`, or None of fewer than `FEWEST_PAIRS` samples, and where a resample has no value:
    it divides by nothing."""
    if n < FEWEST_PAIRS:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        found = interval(statistic, n)
    return found if np.isfinite(found).all() else None


def ratio_interval(ratios: Sequence[float]) -> tuple[float, Interval]:
    """Median of paired ratios and its 95 % percentile-bootstrap interval."""
    values = np.asarray(ratios, dtype=np.float64)
    spread = interval(lambda i: np.asarray(np.median(values[i], axis=1)), len(values))
    return float(np.median(values)), spread


def quotient_interval(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """`known_interval` of Σ above / Σ below, samples with both of theirs."""
    top, bottom = (np.asarray(values, dtype=np.float64) for values in (above, below))
    return known_interval(lambda i: np.asarray(top[i].sum(1) / bottom[i].sum(1)), len(top))


def numbered(labels: Iterable[object]) -> Array:
    """Numbers `[n]` from 0 on, equal ones of equal labels, in the order in which they come."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.int64)


class StratifiedMean:
    """The mean of the strata's means, and its interval when whole clusters are resampled.

    Args:
        strata: the stratum of each of n samples; one for all makes it the plain mean.
        clusters: what each sample shares with others of its stratum, such as its prompt; None: no
            two share anything.
    """

    def __init__(self, strata: Sequence[object], clusters: Sequence[object] | None = None) -> None:
        own = range(len(strata)) if clusters is None else clusters
        pairs = list(zip(strata, own, strict=True))
        self._strata: list[Array] = []  # of each, the cluster of each of its samples
        self._places: list[Array] = []  # and where these stand
        for stratum in dict.fromkeys(strata):
            places = [i for i, (name, _) in enumerate(pairs) if name == stratum]
            self._places.append(np.array(places))
            self._strata.append(numbered(pairs[i][1] for i in places))
        self._counts = [int(of.max()) + 1 for of in self._strata]  # their clusters

    @property
    def fewest(self) -> int:
        """Clusters of the stratum that has the fewest."""
        return min(self._counts, default=0)

    def __call__(self, values: Array) -> float:
        """The mean of values `[n]`."""
        return float(np.mean([values[places].mean() for places in self._places]))

    def interval(self, values: Array, span: float = 1.0) -> Interval:
        """Its 95 % percentile-bootstrap interval.

        Values that are all the same have resamples that are too; they get the rule of three's
        interval: in up to three of n clusters another value may be hidden.

        Args:
            span: from the least value that there may be to the largest.
        """
        value = float(values[0])
        if np.ptp(values) == 0:
            reach = 3 / sum(self._counts) * max(abs(value), span)
            return value - reach, value + reach
        return middle_95(self._resampled(values))

    def share_interval(self, values: Array, whole: Array) -> Interval | None:
        """Interval of the mean over the mean of `whole [n]`, from the same resamples.

        None: a resample of the latter has the mean 0.
        """
        below = self._resampled(whole)
        if not (below > 0).all():
            return None
        return middle_95(self._resampled(values) / below)

    def _resampled(self, values: Array) -> Array:
        """Means `[ROUNDS]`, of the same clusters for any values."""
        rng, total = np.random.default_rng(0), np.zeros(ROUNDS)
        for places, cluster in zip(self._places, self._strata, strict=True):
            sums, counts = np.bincount(cluster, values[places]), np.bincount(cluster)
            picked = rng.integers(0, len(sums), (ROUNDS, len(sums)))
            total += sums[picked].sum(1) / counts[picked].sum(1)
        return total / len(self._strata)


def verdict(loss: Interval, margin: float) -> str:
    """Verdict that the paired 95 % interval of the loss against plain allows.

    Args:
        loss: the interval; positive is worse.
        margin: the loss that is still called small, in the metric's unit.

    A claim is about the upper end: "no loss" and "within" hold only if the whole interval does.
    """
    low, high = loss
    if high <= 0:
        return "no loss"
    if high <= margin:
        return f"within {margin:g}"
    return "worse" if low > margin else "undecided"


def samples_to_decide(loss: Interval, margin: float, n: int) -> int:
    """Samples after which an interval that shrinks as 1/√n would lie on one side of the margin."""
    centre, half = sum(loss) / 2, (loss[1] - loss[0]) / 2
    gap = abs(margin - centre)
    return max(n, round(n * (half / (gap or half / 1000)) ** 2)) if half else n


def mean(values: Mapping[str, float]) -> dict[str, Any]:
    """The mean of values by picture and, of two or more, its 95 % interval."""
    array = np.array(list(values.values()))
    value = float(array.mean())
    if len(array) < 2:
        return {"value": value}
    spread = 1.96 * float(array.std(ddof=1)) / len(array) ** 0.5
    return {"value": value, "ci95": [value - spread, value + spread]}
