"""Acceptance by the laws of earlier drafts: a logistic regression that learns as it goes."""

from __future__ import annotations

import math

import torch

from ..draft import Draft
from ..laws import Categorical, WithoutReplacement

_PRIOR = 0.7  # what is thought of a token before anything is seen
_DOUBT = 1.0  # variance of every weight then
_DRIFT = 1e-4  # that it gains with every token, lest what is known be set in stone
_SIGNALS = 4  # a constant, entropy, top probability, position

Signals = tuple[float, float]
"""Of a draft, in means over its nodes: entropy in nats, and probability of the likeliest token."""


def signals_of(draft: Draft) -> list[Signals | None]:
    """Signals of every row's draft, None of one without; tokens that were chosen are certain."""
    if not draft.nodes:
        return [None] * len(draft.lengths)
    real = draft.live()
    counts = real.sum(1)
    if isinstance(draft.law, Categorical | WithoutReplacement):
        probs = draft.law.probs
        entropy = torch.special.entr(probs).sum(-1)
        both = torch.stack([entropy, probs.amax(-1)], -1).masked_fill(~real[..., None], 0).sum(1)
    else:
        both = torch.stack([torch.zeros_like(counts), counts], -1)
    told = torch.cat([counts[:, None], both], 1).tolist()
    return [(entropy / n, top / n) if n else None for n, entropy, top in told]


class Regression:
    """Chance that a drafted token stands, given that those before it did: σ(w · x).

    x is 1, entropy and top probability of the draft before, and log(1 + i) of position i. With
    every token that was judged, y = 1 if it stood, the weights take a step of Newton's method on
    the log-likelihood, recursively: P ← P − s P x xᵀ P / (1 + s xᵀ P x) with s = p (1 − p), and
    w ← w + (y − p) P x. P is the covariance of the weights, as far as they are known.
    """

    def __init__(self) -> None:
        self.weights = [math.log(_PRIOR / (1 - _PRIOR)), *[0.0] * (_SIGNALS - 1)]
        self.covariance = [[_DOUBT * (i == j) for j in range(_SIGNALS)] for i in range(_SIGNALS)]

    def copied(self) -> Regression:
        """Make one that knows the same, and goes its own way."""
        made = Regression()
        made.weights = list(self.weights)
        made.covariance = [list(row) for row in self.covariance]
        return made

    def stands(self, signals: Signals | None, position: int) -> float:
        """Chance of a position 0, 1, … behind a draft with such signals; None: there was none."""
        told = zip(self.weights, _inputs(signals, position), strict=True)
        return _sigmoid(sum(w * x for w, x in told))

    def learn(self, signals: Signals | None, position: int, stood: bool) -> None:
        """Learn that a position stood, or fell, with those before it standing."""
        x, p = _inputs(signals, position), self.stands(signals, position)
        known, s = self.covariance, p * (1 - p)
        spread = [sum(a * b for a, b in zip(row, x, strict=True)) for row in known]
        gain = 1 / (1 + s * sum(a * b for a, b in zip(spread, x, strict=True)))
        for i, row in enumerate(known):
            self.weights[i] += (stood - p) * gain * spread[i]
            for j in range(_SIGNALS):
                row[j] -= s * gain * spread[i] * spread[j]
            row[i] = min(row[i] + _DRIFT, _DOUBT)


def _inputs(signals: Signals | None, position: int) -> tuple[float, float, float, float]:
    entropy, top = (0.0, 0.5) if signals is None else signals
    return 1.0, entropy, top - 0.5, math.log1p(position)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0
