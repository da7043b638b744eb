"""Models that make the blocks of clips, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...models.wan.cache import WanCache
from ...models.wan.sampler import Draw, FewStepSampler, denoise_block
from ...models.wan.transformer import WanTransformer


@dataclass
class BlockMaker:
    """A video model that is at work on clips, with the steps that it was made for."""

    model: WanTransformer
    sampler: FewStepSampler
    cache: WanCache

    @classmethod
    def start(
        cls, model: WanTransformer, told: Tensor, untold: Tensor, size: tuple[int, int], blocks: int
    ) -> BlockMaker:
        """Begin clips.

        Args:
            told, untold: features of the captions and of none, `[R, T, D]` each.
            size: height and width of the latents.
            blocks: of a clip at most.
        """
        sampler = FewStepSampler.usual(model)
        text = torch.cat([told, untold]) if sampler.guided else told
        return cls(model, sampler, model.start(text, *size, blocks))

    def make(self, noise: Tensor, draw: Draw, last: Tensor | None) -> Tensor:
        """The next block; arguments as of `denoise_block`, `last` is the block before it."""
        return denoise_block(self.model, self.cache, noise, self.sampler, draw, last)
