"""Seconds of a round by its load: a Gaussian process over a profile, and its lower bound."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Load = tuple[int, int, int]
"""Of a round: rows that draft or could, tokens that the longest draft has, and tokens judged."""

_ERROR = 0.18  # deviation of a profile's logarithm: profiles were found as far off (Chen et al.)
_NOISE = 0.1  # of one round's
_REACH = 1.0  # doublings of a load over which costs stay alike
_MOST = 32  # loads that are kept, the latest ones


class RoundCosts:
    """Beliefs about seconds of rounds, by load.

    `log(seconds / profile)` is a Gaussian process over x = log2 of `(rows, 1 + levels, judged)`
    with mean 0 and kernel `σ² exp(−|x − x'|² / 2 ℓ²)`. Of n rounds at one load the mean is
    known up to noise of variance `ν² / n`.

    Args:
        profile: seconds of a round whose longest draft has 0, 1, 2, … tokens.
        loads: what was seen, see `Experience`; it is learnt in place.
    """

    def __init__(self, profile: list[float], loads: dict[Load, tuple[int, float]]) -> None:
        self.profile, self.loads = np.log(profile), loads

    def learn(self, load: Load, surprise: float, news: float) -> None:
        """Learn that a round at a load took `exp(surprise)` times what the profile says.

        Args:
            news: least weight of it in the load's mean.
        """
        count, mean = self.loads.pop(load, (0, 0.0))
        weight = max(1 / (count + 1), news)
        self.loads[load] = min(count + 1, round(1 / news)), mean + weight * (surprise - mean)
        while len(self.loads) > _MOST:
            del self.loads[next(iter(self.loads))]

    def lower(self, loads: Ints, doubt: float = 1.0) -> Floats:
        """Logarithms of seconds `[n]` at loads `[n, 3]`, `doubt` deviations below the mean."""
        mean, deviation = self.posterior(loads)
        lowest: Floats = self.profile[loads[:, 1]] + mean - doubt * deviation
        return lowest

    def posterior(self, loads: Ints) -> tuple[Floats, Floats]:
        """Mean and deviation `[n]` of `log(seconds / profile)` at loads `[n, 3]`."""
        if not self.loads:
            return np.zeros(len(loads)), np.full(len(loads), _ERROR)
        at, seen = _inputs(loads), _inputs(np.array([*self.loads]))
        counts, means = np.array([*self.loads.values()]).T
        factor = np.linalg.cholesky(_kernel(seen, seen) + np.diag(_NOISE**2 / counts))
        across, told = np.linalg.solve(factor, _kernel(seen, at)), np.linalg.solve(factor, means)
        variance = _ERROR**2 - np.square(across).sum(0)
        return told @ across, np.sqrt(variance.clip(0))


def _inputs(loads: Ints) -> Floats:
    return np.log2(loads + np.array([0, 1, 0]))


def _kernel(x: Floats, y: Floats) -> Floats:
    apart = np.square(x[:, None] - y[None]).sum(-1)
    covariance: Floats = _ERROR**2 * np.exp(-apart / (2 * _REACH**2))
    return covariance
