"""Losses of heads: distances between their laws, or hidden states, and the target's.

All take N places: hidden states `[N, D]` or logits `[N, V]` of head and target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Pair = tuple[Tensor, Tensor]
"""The hidden states of the head and of the target at what counts, `[N, D]` each."""
Terms = tuple[Tensor, ...]
Output = Callable[[Tensor], Tensor]
"""Logits `[N, V]` of hidden states `[N, D]`."""


def mean_loss(
    pairs: Sequence[Pair],
    said: Output,
    output: Output,
    loss: Callable[[Pair, Pair], Terms],
) -> tuple[Tensor, dict[str, float]]:
    """The mean of a loss over the levels or tokens of a draft, and the acceptance at each.

    Args:
        pairs: by level, see `Pair`.
        said: the head's output layer.
        output: the target's.
        loss: its terms, of hidden states and of logits.
    """
    total, metrics = pairs[0][0].new_zeros(()), {}
    for level, (hidden, truth) in enumerate(pairs, start=1):
        logits = said(hidden), output(truth)
        for term in loss((hidden, truth), logits):
            total = total + term
        metrics[f"acceptance_{level}"] = acceptance(*logits)
    return total / len(pairs), metrics


def eagle_loss(hidden: Pair, logits: Pair) -> Terms:
    """`SmoothL1(features) + 0.1 · CE(laws)` (EAGLE, Li et al. 2024, section 4.2)."""
    return F.smooth_l1_loss(*hidden), 0.1 * soft_cross_entropy(*logits)


def law_loss(hidden: Pair, logits: Pair) -> Terms:
    """Cross-entropy to the target's laws."""
    return (soft_cross_entropy(*logits),)


def vispec_loss(hidden: Pair, logits: Pair) -> Terms:
    """`10 · Σ|p − q| + 0.1 · ListMLE`, ViSpec's second stage (Kang et al. 2025, section 3.3)."""
    return 10 * total_l1(*logits), 0.1 * list_mle(*logits)


def soft_cross_entropy(logits: Tensor, truth: Tensor) -> Tensor:
    """`−Σ p log q`, p the law of the target's logits `truth`."""
    return F.cross_entropy(logits, truth.softmax(-1))


def total_l1(logits: Tensor, truth: Tensor) -> Tensor:
    """`Σ |p − q|`, the mean over places; `1 − E[accept]` is half of it."""
    return (logits.softmax(-1) - truth.softmax(-1)).abs().sum(-1).mean()


def list_mle(logits: Tensor, truth: Tensor, top: int = 10) -> Tensor:
    """ListMLE (Xia et al. 2008): the negative log-likelihood of the target's order of its `top`.

    The Plackett-Luce law draws the tokens one after the other in proportion to `exp(logits)`, each
    from those that are left: `−Σ_i (s_i − log Σ_{j ≥ i} exp s_j)`.
    """
    order = truth.topk(min(top, truth.shape[-1]), dim=-1).indices
    scores = logits.gather(-1, order)
    left = scores.flip(-1).logcumsumexp(-1).flip(-1)
    return (left - scores).sum(-1).mean()


@torch.no_grad()
def acceptance(logits: Tensor, truth: Tensor) -> float:
    """`Σ min(p, q)`, the mean over places: how often a token drawn from q stands."""
    if not len(logits):
        return float("nan")
    return float(torch.minimum(logits.softmax(-1), truth.softmax(-1)).sum(-1).mean())
