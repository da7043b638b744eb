"""Entries that stay in a cache whatever is asked: what a sceptic compares SpecKV with."""

from __future__ import annotations

import torch
from torch import Tensor


class Streaming:
    """The first few entries and the most recent ones, in all layers alike (StreamingLLM).

    Xiao et al. 2023: models pay much attention to a text's first tokens, whatever they say.

    Args:
        sinks: first entries that stay.
    """

    looks, window = False, 0

    def __init__(self, sinks: int = 4) -> None:
        self.sinks = sinks

    def scores(
        self, layer: int, heads: int, open_: Tensor, weights: Tensor | None, asks: Tensor
    ) -> Tensor:
        """Scores `[R, heads, T]`; see `SpecKv.scores`."""
        places = torch.arange(open_.shape[1], device=open_.device)
        ranks = places.expand_as(open_).float()
        sinks = open_ & (open_.long().cumsum(1) <= self.sinks)
        return ranks.masked_fill(sinks, torch.inf)[:, None].expand(-1, heads, -1)


class RandomEntries:
    """Entries by chance, other ones in every layer and head; the same prompt keeps the same.

    Args:
        window: last entries, in front of a prompt's last token, that always stay.
    """

    looks = False

    def __init__(self, window: int = 32) -> None:
        self.window = window

    def scores(
        self, layer: int, heads: int, open_: Tensor, weights: Tensor | None, asks: Tensor
    ) -> Tensor:
        """Scores `[R, heads, T]`; see `SpecKv.scores`."""
        drawn = torch.zeros(len(open_), heads, open_.shape[1])
        for row, count in zip(drawn, open_.sum(1).tolist(), strict=True):
            coins = torch.Generator().manual_seed(layer)  # a row knows nothing of its neighbours
            row[:, len(row[0]) - count :] = torch.rand(heads, count, generator=coins)
        # those that are open come last, in their order
        places = open_.long().argsort(dim=1, stable=True)[:, None].expand(-1, heads, -1).cpu()
        return torch.zeros_like(drawn).scatter_(2, places, drawn).to(open_.device)
