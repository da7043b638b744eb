"""The ideal speed-up: what the same calls would take if the engine itself cost nothing.

`ideal = plain decode time / Σ over calls (drafter time + T(n))`, with n the drafted nodes of the
call and its root, T and the drafter's time measured on bare forward passes outside the loop.
Prefill and pixel decoding are left out on both sides.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..config import SpecConfig
from ..models.decoder import Decoder
from ..models.llamagen import LlamaGenTransformer


@dataclass
class BareCosts:
    """Seconds of bare cached forward passes of one network, by the number of new tokens a row."""

    decoder: Decoder
    rows: int
    grid: int
    seconds: dict[int, float] = field(default_factory=dict)

    def __call__(self, n: int) -> float:
        """Mean seconds of a forward pass of `n` tokens a row, over the lengths of a generation."""
        if n not in self.seconds:
            self.seconds[n] = measure_forward(self.decoder, self.rows, self.grid, n)
        return self.seconds[n]


@torch.inference_mode()
def measure_forward(decoder: Decoder, rows: int, grid: int, n: int, repeats: int = 15) -> float:
    """Mean seconds of one forward pass, over five cache lengths.

    The mean and not the median: a generation is a sum, slow calls included.
    """
    model: LlamaGenTransformer = decoder.model
    prefix, limit = model.prefix_length, grid * grid
    cache = decoder.cache(rows, prefix + limit + n)
    rotary = model.rotary(grid)
    rotary = torch.cat([rotary, rotary[-1:].expand(n, -1)])
    causal = torch.full((len(rotary), len(rotary)), -torch.inf, device=rotary.device).triu(1)
    x = decoder.embeddings[torch.zeros(rows, n, dtype=torch.long, device=rotary.device)]
    means = []
    for part in (0.1, 0.3, 0.5, 0.7, 0.9):
        slot = prefix + int(part * limit)
        mask = None if n == 1 else causal[slot : slot + n, : slot + n]

        def forward(slot: int = slot, mask: Any = mask) -> None:
            decoder.forward(x, rotary[slot : slot + n], cache, slot, slot + n, mask)

        means.append(statistics.fmean(call_seconds(forward, repeats)))
    return statistics.fmean(means)


def call_seconds(call: Callable[[], None], repeats: int) -> list[float]:
    """Seconds of each of `repeats` calls, after three that don't count."""
    cuda = torch.cuda.is_available()
    times = []
    for i in range(repeats + 3):
        if cuda:
            torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        if cuda:
            torch.cuda.synchronize()
        if i >= 3:
            times.append(time.perf_counter() - started)
    return times


def ideal_seconds(
    config: SpecConfig, rounds: list[int], target: BareCosts, drafter: BareCosts | None
) -> float:
    """Seconds of the bare passes behind a generation whose calls drafted `rounds` nodes each."""
    total = sum(target(n + 1) for n in rounds)
    if drafter is None:
        return total
    if config.resolved().drafter == "model":
        # the first pass of a draft reads the last token or two, the others one each
        total += sum(drafter(1) * n for n in rounds)
    if config.resolved().drafter == "tree":
        # one pass a level; all but the first read the root and the tree so far
        levels = [config.nodes(n) for n in range(1, len(config.tree_widths))]
        total += sum(drafter(1) for n in rounds if n)
        total += sum(drafter(1 + size) for n in rounds for size in levels if size < n)
    return total
