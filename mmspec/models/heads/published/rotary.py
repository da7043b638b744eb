"""Rotary positions of published heads, by the configuration's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ....errors import InputError


class HeadRotary:
    """Cosines and sines of positions, scaled as the configuration says.

    `rope_scaling` of type "mrope" (Qwen2-VL, Qwen2.5-VL) turns sections of a head by the position
    in time, row and column. With `mrope_interleaved` (Qwen3-VL) the three axes take turns.

    Args:
        config: with Llama's keys `rope_theta` and `rope_scaling`, or transformers' newer
            `rope_parameters`.
        head_dim: numbers of a head that are turned: all, or the first part of them.

    Raises:
        InputError: the type of scaling is unknown, or the sections do not fill half a head.
    """

    def __init__(self, config: Mapping[str, Any], head_dim: int) -> None:
        rope = {**(config.get("rope_parameters") or {}), **(config.get("rope_scaling") or {})}
        if config.get("rope_is_neox_style") is False:
            raise InputError("a draft head whose positions turn neighbours is not supported")
        theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
        rope.pop("partial_rotary_factor", None)  # `head_dim` has it
        kind = rope.get("rope_type") or rope.get("type") or "default"
        self.scaling = 1.0
        self.sections: list[int] | None = None
        self.interleaved = bool(rope.get("mrope_interleaved"))
        if kind == "mrope" or rope.get("mrope_section"):
            self.sections = list(rope.get("mrope_section") or ())
            if sum(self.sections) != head_dim // 2 or len(self.sections) != 3:
                raise InputError(
                    f"mrope_section {self.sections} of the draft head does not add up to half of "
                    f"its head_dim {head_dim}"
                )
            kind = "default" if kind == "mrope" else kind
        if kind == "default":
            steps = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
            self.frequencies = theta**-steps
            return
        if kind not in ROPE_INIT_FUNCTIONS or kind in ("dynamic", "longrope"):
            raise InputError(f"the draft head's rope_scaling of type {kind!r} is not supported")
        llama = LlamaConfig(
            hidden_size=int(config["hidden_size"]),
            num_attention_heads=int(config["num_attention_heads"]),
            head_dim=head_dim,
            max_position_embeddings=int(config.get("max_position_embeddings", 2048)),
            rope_parameters={**rope, "rope_type": kind, "rope_theta": theta},
        )
        self.frequencies, self.scaling = ROPE_INIT_FUNCTIONS[kind](llama, torch.device("cpu"))

    @property
    def axes(self) -> int:
        """Positions of a token: three with sections, or else one."""
        return 1 if self.sections is None else 3

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[R, N, head_dim]` of positions `[R, N]` or `[3, R, N]`."""
        real = torch.float64 if dtype == torch.float64 else torch.float32
        frequencies = self.frequencies.to(positions.device, real)
        if self.sections is None:
            angles = (positions if positions.ndim == 2 else positions[0])[..., None] * frequencies
        else:
            axes = positions if positions.ndim == 3 else positions.expand(3, -1, -1)
            angles = axes[..., None] * frequencies  # [3, R, N, head_dim / 2]
            angles = angles.gather(0, self._axis(angles)[None].expand(1, *angles.shape[1:]))[0]
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos() * self.scaling, angles.sin() * self.scaling

    def _axis(self, angles: Tensor) -> Tensor:
        """The axis that turns each pair of a head `[head_dim / 2]`."""
        assert self.sections is not None
        pairs = torch.arange(angles.shape[-1], device=angles.device)
        if not self.interleaved:
            ends = torch.tensor(self.sections, device=angles.device).cumsum(0)
            return torch.searchsorted(ends, pairs, right=True)
        # time takes every pair that row and column, in turns, leave over
        axis = torch.zeros_like(pairs)
        for number in (1, 2):
            own = (pairs % 3 == number) & (pairs < 3 * self.sections[number])
            axis = torch.where(own, number, axis)
        return axis
