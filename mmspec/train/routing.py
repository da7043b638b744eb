"""Learning of routers: the loss of a sign, and what routing by a guess wins."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

RANKS = "held_out_rank_correlation"


def rank_correlation(one: Tensor, other: Tensor) -> float:
    """Spearman's ρ of numbers `[n]`, where equal ones share a rank; 0 if a side's all are equal."""
    ranks = torch.stack([_ranks(one), _ranks(other)])
    return float(torch.corrcoef(ranks)[0, 1].nan_to_num())


def _ranks(x: Tensor) -> Tensor:
    """Of each number, how many are below it, and half of those that equal it."""
    _, place, counts = x.unique(return_inverse=True, return_counts=True)
    counts = counts.double()
    return (counts.cumsum(0) - counts / 2)[place]


def balanced_loss(logits: Tensor, better: Tensor) -> Tensor:
    """Cross-entropy of logits `[n]`, in which both classes that are there count as much.

    Args:
        better: of each, whether the target did better `[n]` bool.
    """
    each = F.binary_cross_entropy_with_logits(logits, better.to(logits), reduction="none")
    return torch.stack([each[of].mean() for of in (better, ~better) if of.any()]).mean()


def wasted_share(asked: Tensor, gain: Tensor) -> float:
    """Share of the asked units, `[n]` bool, in which the target did no better, Δ ≤ 0."""
    return float((gain[asked] <= 0).double().mean().nan_to_num())


def gained_share(guess: Tensor, gain: Tensor, share: float = 0.5) -> float:
    """Gain of asking for the likeliest share of units over that of the best; 0 if none wins."""
    count = round(share * len(gain))
    chosen, best = (gain[x.argsort(descending=True)[:count]].sum() for x in (guess, gain))
    return float(chosen / best) if best > 0 else 0.0


class BestRanked:
    """Part of a recipe that exports the weights of the evaluation whose guesses ranked best.

    Attributes:
        best: figures and weights of that evaluation since the run began; None before the first.
    """

    best: tuple[dict[str, float], dict[str, Tensor]] | None = None

    def ranked(self, figures: dict[str, float], model: Any) -> dict[str, float]:
        """The figures of an evaluation, whose weights are kept if it ranks best so far."""
        if self.best is None or figures[RANKS] > self.best[0][RANKS]:
            self.best = figures, {name: x.clone() for name, x in model.state_dict().items()}
        return figures

    def state(self) -> dict[str, Any]:
        """Tell what a run that goes on has to know, for its checkpoint."""
        return {"best": self.best}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's `state`."""
        self.best = state.get("best")

    def take_best(self, model: Any, record: dict[str, Any]) -> None:
        """Give a model the weights that ranked best, and the record their figures."""
        if self.best is not None:
            record["held_out"], weights = self.best
            model.load_state_dict(weights)
