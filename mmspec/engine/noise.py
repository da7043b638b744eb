"""Noise that belongs to a place: a pure function of (row seed, place, draw, step).

Two models that denoise the same token read the same noise, and a row's noise depends neither on its
neighbours nor on how many steps another token took.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .coins import _mix, _uniform, row_keys

_ORDER = -1  # the line of a row's order; those of places start at 0


class PlacedNoise:
    """Counter-based noise: no state but the seeds.

    Args:
        seeds: one integer per row.
        device: where the noise is needed.
    """

    def __init__(self, seeds: list[int], device: torch.device | str = "cpu") -> None:
        # apart from what `ProductionCoins` derives from the same seeds
        self._keys = _mix(row_keys(seeds, device) ^ 0x4E6F697365)

    def order(self, places: int) -> Tensor:
        """A random order `[B, places]` of the places 0 … `places` - 1, one per row."""
        keys = _mix(self._keys[:, None] + _mix(torch.tensor(_ORDER, device=self._keys.device)))
        index = torch.arange(places, device=keys.device) + 1
        return _uniform(_mix(keys + _mix(index))).argsort(-1)

    def normal(
        self, places: Tensor, start: int, steps: int, channels: int, draw: int | Tensor = 0
    ) -> Tensor:
        """Standard normal numbers `[B, n, steps, channels]`, float64.

        Args:
            places: of the tokens, `[B, n]`, 0 or more.
            start, steps: the first of the steps, counted from the noisy end, and how many.
            channels: numbers a step.
            draw: tells the draws of one place apart, one number or one per token `[B, n]`: a token
                that was rejected must not be drawn again from the noise that led there.
        """
        keys = _mix(self._keys[:, None] + _mix(places))
        keys = _mix(keys + _mix(torch.as_tensor(draw, device=keys.device)))
        index = torch.arange(start * channels, (start + steps) * channels, device=keys.device) + 1
        u = _uniform(_mix(keys[..., None] + _mix(index)))
        noise: Tensor = torch.special.ndtri(u.clamp_min_(2.0**-54))
        return noise.view(*places.shape, steps, channels)
