"""Attention of a draft to a long text: in one part with a mask, or in two that are merged."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mmspec.eval.measure.bootstrap import ratio_interval
from mmspec.eval.measure.ideal_speedup import call_seconds
from mmspec.models.merged_attention import merged_attention

HEADS, WIDTH = 8, 64
LENGTHS, NODES = (1024, 4096, 16384), (8, 64)


def merging(pipe: Any = None, samples: int = 10) -> dict[str, Any]:
    """Milliseconds of one layer's attention by length of text and size of the draft; paired.

    `whole_over_merged` is above 1 where two parts are quicker. The keys and values are random, of
    8 heads of width 64, and the draft is a chain: neither matters.
    """
    found: dict[str, Any] = {}
    for length in LENGTHS:
        for nodes in NODES:
            whole, merged = _ways(length, nodes)
            found[f"{nodes} tokens behind {length}"] = compared(whole, merged, "merged", samples)
    return found


def _ways(length: int, nodes: int) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, HEADS, nodes, WIDTH, generator=generator)
    k, v = torch.randn(2, 1, HEADS, length + nodes, WIDTH, generator=generator)
    mask = torch.zeros(nodes, length + nodes)
    mask[:, length:] = torch.full((nodes, nodes), -torch.inf).triu(1)

    @torch.inference_mode()
    def whole() -> Tensor:
        return merged_attention(q, k, v, mask)

    @torch.inference_mode()
    def merged() -> Tensor:
        return merged_attention(q, k, v, mask, length)

    return whole, merged


def compared(
    whole: Callable[[], Tensor], other: Callable[[], Tensor], name: str, samples: int
) -> dict[str, Any]:
    """Milliseconds of the other way, by its name, and how many times as fast it is; in pairs."""
    pairs = [(_seconds(whole), _seconds(other)) for _ in range(samples)]
    ratio, spread = ratio_interval([slow / fast for slow, fast in pairs])
    return {
        f"{name}_ms": 1000 * statistics.median(fast for _, fast in pairs),
        f"whole_over_{name}": ratio,
        f"whole_over_{name}_ci95": spread,
    }


def _seconds(way: Callable[[], Tensor]) -> float:
    return statistics.median(call_seconds(way, 5))
