"""The ideal speed-up: what the same calls would take if the engine itself cost nothing.

`ideal = plain decode time / Σ over calls (drafter time + T(n))`, with n the drafted nodes of the
call and its root, T and the drafter's time measured on bare forward passes outside the loop.
Prefill and pixel decoding are left out on both sides.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...devices import wait
from ...engine.stats import SpecStats
from ...methods import Modality, SpecConfig
from ...models.decoders import Decoder
from ...models.llamagen.decoder import LlamaGenDecoder
from ...models.token_grid import TokenGrid

_ANCHORS = (1, 3, 5, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257)
_PARTS = (0.1, 0.3, 0.5, 0.7, 0.9)
_PROMPT = 32  # tokens in front of a picture, where the network does not say how many


@dataclass
class BareCosts:
    """Seconds of bare cached forward passes of one network, by the number of new tokens a row.

    Measured where `_ANCHORS` says, on a line between. A machine's speed drifts, so `renew` forgets
    what was measured; `now` holds what was since, by tokens a row. The rest is as of
    `measure_forward`.
    """

    decoder: Decoder
    rows: int
    grid: TokenGrid
    prefix: int | None = None
    parts: tuple[float, ...] = _PARTS
    now: dict[int, float] = field(default_factory=dict)

    def renew(self) -> None:
        """Measure anew when asked the next time."""
        self.now.clear()

    def __call__(self, n: int) -> float:
        """Mean seconds of a forward pass of `n` tokens a row, over the lengths of a generation."""
        above = next(anchor for anchor in _ANCHORS if anchor >= n)
        if above == n:
            return self._at(n)
        below = max(anchor for anchor in _ANCHORS if anchor < n)
        low, high = self._at(below), self._at(above)
        return low + (high - low) * (n - below) / (above - below)

    def _at(self, n: int) -> float:
        if n not in self.now:
            self.now[n] = measure_forward(
                *(self.decoder, self.rows, self.grid, n),
                repeats=3,
                prefix=self.prefix,
                parts=self.parts,
            )
        return self.now[n]


@torch.inference_mode()
def measure_forward(
    decoder: Decoder,
    rows: int,
    grid: TokenGrid,
    n: int,
    repeats: int = 15,
    prefix: int | None = None,
    parts: Sequence[float] = _PARTS,
) -> float:
    """Mean seconds of one forward pass, over several cache lengths.

    The mean and not the median: a generation is a sum, slow calls included.

    Args:
        prefix: tokens in front of the picture or the answer; None: as the network says.
        parts: of it that are written already, from 0 to 1: a length of the cache each.
    """
    limit = grid.length
    if prefix is None:
        prefix = decoder.model.prefix_length if isinstance(decoder, LlamaGenDecoder) else _PROMPT
    cache = decoder.cache(rows, prefix + limit + n)
    rotary = decoder.rotary(grid.columns)[: prefix + limit]
    rotary = torch.cat([rotary, rotary[-1:].repeat_interleave(n, 0)])
    causal = torch.full((len(rotary), len(rotary)), -torch.inf, device=rotary.device).triu(1)
    x = decoder.embed(torch.zeros(rows, n, dtype=torch.long, device=rotary.device))
    means = []
    for part in parts:
        slot = prefix + int(part * limit)
        mask = None if n == 1 else causal[slot : slot + n, : slot + n]

        def forward(slot: int = slot, mask: Any = mask) -> None:
            decoder.forward(x, rotary[slot : slot + n], cache, slot, slot + n, mask)

        means.append(statistics.fmean(call_seconds(forward, repeats, x.device)))
    return statistics.fmean(means)


def call_seconds(
    call: Callable[[], object], repeats: int, device: torch.device | str = "cpu"
) -> list[float]:
    """Seconds of each of `repeats` calls on a device, after three that don't count."""
    device, times = torch.device(device), []
    for i in range(repeats + 3):
        wait(device)
        started = time.perf_counter()
        call()
        wait(device)
        if i >= 3:
            times.append(time.perf_counter() - started)
    return times


def ideal_seconds(
    config: SpecConfig,
    stats: SpecStats,
    target: BareCosts,
    drafter: BareCosts | None,
    modality: Modality = "image",
) -> float | None:
    """Seconds of the bare passes behind a generation.

    None where networks took part whose passes are not timed here: heads on the target's features,
    rounded ones, those whose cache keeps some of a prompt, and what draws a small picture and
    scales it up; and where a drafter works beside the target.
    """
    parts = config.resolve(modality)
    if parts.rounds or parts.weights is not None or parts.draft_weights is not None:
        return None
    if config.draft_cache is not None or config.target_cache is not None:
        return None
    if parts.drafter.ahead or set(parts.needs) - {"drafter"}:
        return None
    if parts.drafter_only:
        assert drafter is not None
        target = drafter
    total = sum(target(n + 1) for n in stats.rounds)
    if stats.own_drafts:
        total += stats.own_drafts * target(1)
    if drafter is None or "drafter" not in parts.needs:
        return total
    size = parts.draft_size()
    most = [size.nodes(depth) for depth in range(size.deepest + 1)]
    for n in stats.rounds:
        # the smallest draft that can have so many nodes; where a budget of nodes makes several
        # depths as large as that, the deepest
        enough = min(nodes for nodes in most if nodes >= n)
        depth = max(d for d, nodes in enumerate(most) if nodes == enough)
        total += sum(drafter(tokens) for tokens in size.draft_calls(depth))
    return total
