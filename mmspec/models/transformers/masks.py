"""Masks of a transformers model: full, or with a window in some layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

STATEFUL = ("linear_attention", "conv")  # kinds of layers that keep a state, and have no keys


@dataclass(frozen=True)
class Masks:
    """Form of a model's masks: one for all layers, or one for each kind of layers.

    Attributes:
        window: entries that a layer with a sliding window reads, itself included; None: no window.
        kinds: names of the kinds, "sliding" in those that have the window; empty: one mask for all.
            `STATEFUL` ones take none.
    """

    window: int | None = None
    kinds: tuple[str, ...] = ()

    @classmethod
    def stated(cls, config: Any) -> Masks:
        """The form that a language model's configuration states."""
        window = getattr(config, "sliding_window", None)
        kinds = tuple(dict.fromkeys(getattr(config, "layer_types", None) or ()))
        if not kinds:
            return cls(window)
        if set(kinds) == {"full_attention"}:
            return cls()
        return cls(window if any("sliding" in kind for kind in kinds) else None, kinds)

    def slides(self, config: Any, layer: int) -> bool:
        """True if a layer reads no further back than the window."""
        one = not self.kinds or "sliding" in config.layer_types[layer]
        return self.window is not None and one

    def of(
        self,
        mask: Tensor,
        distance: Callable[[], Tensor],
        held: Tensor | None = None,
    ) -> Any:
        """The mask that the model is given, or masks by kind of layer; None: it takes none.

        Args:
            mask: for full attention `[R or 1, 1, N, length]`, added to the scores.
            distance: how many columns each entry lies before each input `[R, N, length]`.
            held: slots that layers with a window read, see `RingCache.begin_call`.
        """
        near = mask
        if self.window is not None and mask.shape[-1] > self.window:
            near = mask.masked_fill((distance() >= self.window)[:, None], -torch.inf)
        if held is not None:
            slots = held[:, None, None].expand(len(near), -1, near.shape[2], -1)
            near = near.gather(-1, slots.clamp_min(0)).masked_fill(slots < 0, -torch.inf)
        if not self.kinds:
            return near
        masks: dict[str, Tensor | None] = {}
        for kind in self.kinds:
            masks[kind] = None if kind in STATEFUL else near if "sliding" in kind else mask
            if kind.startswith("hybrid"):  # some name what is in such a layer
                attention = "sliding_attention" if "sliding" in kind else "full_attention"
                masks |= {attention: masks[kind], "linear_attention": None}
        return None if all(mask is None for mask in masks.values()) else masks
