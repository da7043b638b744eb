"""Which blocks of a clip read which: the context window, and its mask over a whole clip."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..errors import InputError


@dataclass(frozen=True)
class ContextWindow:
    """Which earlier blocks a block reads.

    Self-Forcing's `local_attn_size` counts frames and the block itself: sink + blocks + 1 blocks.

    Attributes:
        blocks: the last so many before it; None: all (a global window).
        sink: and of the clip's first blocks so many, for ever.

    Raises:
        InputError: a value is out of range.
    """

    blocks: int | None = None
    sink: int = 0

    def __post_init__(self) -> None:
        if self.blocks is not None and self.blocks < 1:
            raise InputError(f"a window has at least 1 block, not {self.blocks}")
        if self.sink < 0:
            raise InputError(f"sink must be 0 or more blocks, not {self.sink}")

    def slots(self, limit: int | None) -> int:
        """Blocks that a cache has room for; `limit`: of the clip, which a global window needs.

        One more than are read: a block that is made again finds all that it read at first.
        """
        if self.blocks is not None:
            return self.sink + self.blocks + 1
        if limit is None:
            raise InputError("a global window needs a limit of blocks, or give a rolling one")
        return limit

    def slot(self, block: int) -> int:
        """Where a cache keeps a block: the same place whenever it is made."""
        if self.blocks is None or block < self.sink:
            return block
        return self.sink + (block - self.sink) % (self.blocks + 1)

    def moved(self, block: int, known: int) -> int:
        """By how many blocks the sink is moved towards a block that reads it.

        Of a stream far longer than training, the sink would be farther away than any block was
        there. It keeps the largest distance of a clip of `known` blocks, in front of the window.
        """
        if self.blocks is None:
            return 0
        return max(0, block - max(known - 1, self.sink + self.blocks))

    def reads(self, block: Tensor, other: Tensor) -> Tensor:
        """Whether blocks read others, by their numbers; of itself no block is asked."""
        before = other < block
        if self.blocks is None:
            return before
        return before & ((other < self.sink) | (other >= block - self.blocks))


@lru_cache(maxsize=4)
def block_causal_mask(
    frames: int,
    block_frames: int,
    tokens: int,
    window: ContextWindow,
    clean: bool,
    device: torch.device,
) -> Tensor:
    """What is added to the scores `[1, 1, n, n]` of a whole clip: 0 where one reads, else -inf.

    Args:
        frames: of the clip; n = frames · tokens.
        block_frames: frames of a block.
        tokens: of a frame.
        clean: the clip stands there twice, clean and then noisy, n twice as large: noisy blocks
            read clean ones and themselves.
    """
    with torch.inference_mode(False):  # a later call may train with it
        block = torch.arange(frames, device=device) // block_frames
        earlier = window.reads(block[:, None], block)
        own = block[:, None] == block
        reads = earlier | own
        if clean:
            nothing = torch.zeros_like(own)
            reads = torch.cat(
                [torch.cat([reads, nothing], dim=1), torch.cat([earlier, own], dim=1)]
            )
        reads = reads.repeat_interleave(tokens, 0).repeat_interleave(tokens, 1)
        return torch.zeros(reads.shape, device=device).masked_fill(~reads, -torch.inf)[None, None]
