"""What fits a block-causal Wan: whole blocks of frames, whole tokens of pixels."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from ...errors import InputError
from ...models.wan.transformer import WanTransformer
from ...models.wan.vae import spatial_factor, temporal_factor


class VideoSizes:
    """Sizes of clips in pixels and in latents."""

    def __init__(self, transformer: WanTransformer, vae: Any) -> None:
        self.config = transformer.config
        self.space, self.time = spatial_factor(vae), temporal_factor(vae)

    def frames(self, blocks: int) -> int:
        """Picture frames of so many blocks: the first latent frame is one, the others several."""
        return 1 + self.time * (blocks * int(self.config.num_frame_per_block) - 1)

    def split(self, frames: list[Any], makers: list[str]) -> list[tuple[str, list[Any]]]:
        """A clip's frames block by block, each with its maker, of which there is one a block."""
        ends = [0, *(self.frames(n + 1) for n in range(len(makers)))]
        return [(maker, frames[a:b]) for maker, (a, b) in zip(makers, pairwise(ends), strict=True)]

    def blocks(self, num_frames: int | None) -> int:
        """Whole blocks of a clip; None: of one as the model was made for."""
        size = int(self.config.num_frame_per_block)
        if num_frames is None:
            return max(1, int(self.config.sample_frames) // size)
        blocks = (num_frames - 1 + self.time) // (self.time * size)
        if blocks < 1 or self.frames(blocks) != num_frames:
            near = [str(self.frames(n)) for n in (blocks, blocks + 1) if n >= 1]
            raise InputError(
                f"num_frames must be of whole blocks of {size} latent frames, such as "
                f"{' or '.join(near[:2] or [str(self.frames(1))])}, not {num_frames}"
            )
        return blocks

    def latents(self, height: int | None, width: int | None) -> tuple[int, int]:
        """Height and width of the latents, of whole tokens; None: as the model was made for."""
        config, (_, rows, columns) = self.config, self.config.patch_size
        return (
            self._side("height", height, config.sample_height, rows),
            self._side("width", width, config.sample_width, columns),
        )

    def _side(self, name: str, pixels: int | None, own: int, patch: int) -> int:
        unit = self.space * patch
        if pixels is None:
            return own
        if pixels < unit or pixels % unit:
            raise InputError(f"{name} must be a multiple of {unit} pixels, not {pixels}")
        return pixels // self.space
