"""Muon: momentum whose matrices are orthogonalized (Jordan et al. 2024).

torch.optim.Muon iterates in bfloat16 only: faster than float32 on a processor that has such
products, far slower on one that has not. Here the precision is the recipe's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .parallel import Processes


class Muon(torch.optim.Optimizer):
    """Nesterov momentum on weight matrices, orthogonalized, scaled to AdamW's usual step size.

    Args:
        params: matrices `[m, n]`; a convolution's kernels `[m, …]` are taken as one.
        lr: step size, comparable with AdamW's (Liu et al. 2025, "Muon is Scalable": factor
            0.2 · sqrt(max(m, n))).
        momentum: decay of the running gradient.
        weight_decay: decoupled.
        dtype: of the iteration that orthogonalizes; None: the weights' own.

    Attributes:
        processes: those that train together, with equal gradients: each orthogonalizes a part of
            the matrices, and tells the others.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.dtype, self.processes = dtype, Processes()
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise ValueError("Muon takes no closure")
        for group in self.param_groups:
            given = [p for p in group["params"] if p.grad is not None]
            for p, turn in zip(given, _turns(given, self.processes.count), strict=True):
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                buffer: Tensor = state["momentum"]
                buffer.lerp_(p.grad, 1 - group["momentum"])
                nesterov = p.grad.lerp(buffer, group["momentum"]).flatten(1)
                update = nesterov.to(self.dtype or p.dtype)
                if turn == self.processes.index:
                    update = orthogonalize(update)
                update = self.processes.told(update.to(p.dtype), turn).view_as(p)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * 0.2 * max(nesterov.shape) ** 0.5)


def _turns(matrices: list[nn.Parameter], count: int) -> list[int]:
    """Assign each matrix to one of `count` processes, so that all have as much to do."""
    turns, busy = [0] * len(matrices), [0] * count
    work = [p.numel() * min(len(p), p[0].numel()) for p in matrices]
    for index in sorted(range(len(matrices)), key=lambda i: -work[i]):
        turns[index] = busy.index(min(busy))
        busy[turns[index]] += work[index]
    return turns


def orthogonalize(g: Tensor, steps: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrix to `g [m, n]`, roughly, by Newton–Schulz iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
