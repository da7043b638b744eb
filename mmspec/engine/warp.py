"""Logits to the law that is sampled: temperature, then top-k, then top-p, then softmax."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Warp:
    """The warpers of transformers' `generate`, over any leading shape.

    Args:
        temperature: 0 makes the law a point mass on the largest logit (greedy).
        top_k: keep the k largest logits, ties with the k-th included; 0 keeps all.
        top_p: keep the smallest set of largest probabilities that reaches this mass; 1 keeps all.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    @property
    def greedy(self) -> bool:
        """True if its laws are point masses, on the largest logit."""
        return self.temperature == 0

    @property
    def soft(self) -> Warp:
        """The warpers of the law that a greedy output takes the largest of; else these."""
        return replace(self, temperature=1.0) if self.greedy else self

    def __call__(self, logits: Tensor) -> Tensor:
        """Probabilities of the same shape `[..., V]`, in at least float32."""
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        if self.greedy:
            best = logits.max(-1, keepdim=True)
            law = torch.zeros_like(logits).scatter_(-1, best.indices, 1.0)
            return law + best.values * 0  # no numbers where the largest logit is none or infinite
        if self.temperature != 1:
            logits = logits / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            logits = torch.where(logits < _largest(logits, self.top_k), -torch.inf, logits)
        if self.top_p < 1:
            ordered, order = logits.sort(-1, descending=True)
            mass = ordered.softmax(-1)
            before = mass.cumsum(-1) - mass  # what already stands ahead of each token
            drop = torch.zeros_like(mass, dtype=torch.bool).scatter_(
                -1, order, (before >= self.top_p) & (before > 0)
            )
            logits = logits.masked_fill(drop, -torch.inf)
        return logits.softmax(-1)


def _largest(x: Tensor, k: int) -> Tensor:
    """The k-th largest entry of each row of `x [..., V]`: `[..., 1]`."""
    if x.device.type == "cpu":  # a partition is quicker than a sorted top k
        x = x.detach() if x.requires_grad else x
        return torch.from_numpy(np.partition(x.numpy(), -k, axis=-1)[..., -k, None])
    return x.topk(k, dim=-1, sorted=True).values[..., -1:]
