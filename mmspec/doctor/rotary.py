"""Rotary positions that a head may have been trained with: its target's, and the usual ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..errors import InputError
from ..models.heads.published.head import PublishedHead
from ..models.heads.published.rotary import HeadRotary

USUAL = 10000.0  # where a configuration is silent


def target_rotary(head: PublishedHead, config: Any) -> HeadRotary | None:
    """The positions of a target's text configuration at the width of the head's; None: unknown."""
    own = config.to_dict()
    rope = own.get("rope_parameters") or {}
    if any(isinstance(value, dict) for value in rope.values()):  # layers of several kinds
        own["rope_parameters"] = rope.get("full_attention")
    try:
        return HeadRotary(own, _head_dim(head))
    except (InputError, KeyError, TypeError):
        return None


def same(one: HeadRotary, other: HeadRotary) -> bool:
    """True if both turn alike."""
    kinds = (
        (one.sections, one.interleaved, one.scaling),
        (
            other.sections,
            other.interleaved,
            other.scaling,
        ),
    )
    return kinds[0] == kinds[1] and torch.allclose(
        one.frequencies.double(), other.frequencies.double()
    )


def described(rotary: HeadRotary) -> str:
    """Base and kind of rotary positions in a few words."""
    slowest = float(rotary.frequencies[-1])
    pairs = len(rotary.frequencies)
    theta = slowest ** (-pairs / max(1, pairs - 1)) if slowest > 0 else float("inf")
    kind = "" if rotary.sections is None else f", mrope_section {rotary.sections}"
    return f"theta {theta:.6g}{kind}"


def rotaries(head: PublishedHead, config: Any) -> Iterator[tuple[str, str, HeadRotary]]:
    """Other positions than the head's: name, advice, positions."""
    if head.rotary is None:
        return
    known = [head.rotary]
    theirs = target_rotary(head, config)
    if theirs is not None and not same(theirs, head.rotary):
        known.append(theirs)
        name = f"the target's rotary positions ({described(theirs)})"
        yield name, "copy the target's rope_theta and rope_scaling into config.json", theirs
    usual = HeadRotary({"rope_theta": USUAL}, _head_dim(head))
    if not any(same(usual, one) for one in known):
        name = f"the usual rotary positions ({described(usual)})"
        yield name, f"set rope_theta to {USUAL:.0f} and leave rope_scaling out", usual


def _head_dim(head: PublishedHead) -> int:
    assert head.rotary is not None
    return 2 * len(head.rotary.frequencies)
