"""Training-free compressors of a prompt's cache."""

from __future__ import annotations

from typing import Any, Literal

from ...errors import InputError
from ..cache_part import CacheCompressor
from ..options import Options, option

Evicts = Literal["all", "pictures"]


class EvictOptions(Options):
    evicts: Evicts = option(
        "all", "which entries may leave a cache: those of a whole prompt, or of its pictures alone"
    )


class WindowOptions(EvictOptions):
    cache_window: int = option(
        32, "last entries of a prompt, in front of its last token, that always stay", 0, 65536
    )


class PooledOptions(WindowOptions):
    cache_kernel: int = option(
        7, "neighbouring entries of which each has the largest score; an odd number", 1, 1025
    )

    def __post_init__(self) -> None:
        if self.cache_kernel % 2 == 0:
            raise InputError(
                f"cache_kernel must be odd, as many entries on either side, not {self.cache_kernel}"
            )


class LookaheadOptions(PooledOptions):
    lookahead_tokens: int | None = option(
        None,
        "tokens that a draft model writes ahead, whose attention chooses; none: a whole answer",
        1,
        65536,
    )


class SinkOptions(EvictOptions):
    sink_tokens: int = option(4, "first entries of a prompt that always stay", 0, 4096)


_POOLED: dict[str, Any] = {"window": "cache_window", "kernel": "cache_kernel"}

PARTS = (
    CacheCompressor(
        "speckv",
        ".speckv:SpecKv",
        "the entries that an answer attends to which a draft model writes ahead",
        LookaheadOptions,
        {**_POOLED, "mean": lambda options, offers: False},
        needs=("drafter",),
        ahead=True,
        paper="Galim et al. 2025",
    ),
    CacheCompressor(
        "snapkv",
        ".speckv:SpecKv",
        "the entries that the prompt's own end attends to, on average",
        PooledOptions,
        {**_POOLED, "mean": lambda options, offers: True},
        paper="Li et al. 2024",
    ),
    CacheCompressor(
        "streaming",
        ".streaming:Streaming",
        "the first few entries and the most recent ones",
        SinkOptions,
        {"sinks": "sink_tokens"},
        paper="Xiao et al. 2023",
    ),
    CacheCompressor(
        "random-entries",
        ".streaming:RandomEntries",
        "entries by chance, and the prompt's end",
        WindowOptions,
        {"window": "cache_window"},
    ),
)
