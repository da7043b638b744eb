"""Declaration of a cache compressor, and how much of a prompt one leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from .options import Option
from .part import Part
from .parts.pipelines import Modality

_SHARE = (
    "share of a prompt's cache entries that the cache compressor leaves; none: half of them, or as "
    "many as its size says"
)
_SIZE = "most entries of a prompt that the cache compressor leaves; none: any number"
CACHE_KEEP = Option("cache_keep", None, _SHARE, float, optional=True, high=1, above=0)
CACHE_SIZE = Option("cache_size", None, _SIZE, int, optional=True, low=1, high=2**20)


@dataclass(frozen=True)
class CacheCompressor(Part):
    """A training-free choice of a prompt's keys and values that stay, by layer and head.

    Attributes:
        ahead: it goes by text that a draft model writes ahead.
        serves: modalities whose models have prompts worth it.
    """

    ahead: bool = False
    serves: tuple[Modality, ...] = ("vlm",)
    kind: ClassVar[str] = "cache"
    home: ClassVar[str] = "mmspec.compress"


class CacheChoice(NamedTuple):
    """A chooser of entries as it works for one cache.

    Attributes:
        chooser: tells what entries are worth, see `mmspec.compress.speckv`.
        share: of a prompt's entries that stay.
        size: most of them; None: any number.
        ahead: it goes by text that a draft model writes ahead.
    """

    chooser: Any
    share: float
    size: int | None
    ahead: bool


def share_of(keep: float | None, size: int | None) -> float:
    """Share of a prompt's entries that stay, by both settings, before `size` bounds it."""
    return (0.5 if size is None else 1.0) if keep is None else keep
