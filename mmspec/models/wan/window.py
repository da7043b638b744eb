"""Context window of blocks, and attention over a whole clip."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ...errors import InputError
from ..llamagen.transformer import attend


@dataclass(frozen=True)
class ContextWindow:
    """Earlier blocks that a block reads.

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
        """Place of a block in a cache: the same whenever it is made."""
        if self.blocks is None or block < self.sink:
            return block
        return self.sink + (block - self.sink) % (self.blocks + 1)

    def moved(self, block: int, known: int) -> int:
        """Number of blocks by which the sink is moved towards a block that reads it.

        Of a stream far longer than training, the sink would be farther away than any block was
        there. It keeps the largest distance of a clip of `known` blocks, in front of the window.
        """
        if self.blocks is None:
            return 0
        return max(0, block - max(known - 1, self.sink + self.blocks))

    def reads(self, block: Tensor, other: Tensor) -> Tensor:
        """Mask of the blocks that read others, by their numbers; no block is asked of itself."""
        before = other < block
        if self.blocks is None:
            return before
        return before & ((other < self.sink) | (other >= block - self.blocks))


def attend_blocks(
    q: Tensor, k: Tensor, v: Tensor, tokens: int, window: ContextWindow, copies: int
) -> Tensor:
    """Self-attention of a whole clip, every block over what it reads and itself: shaped like `q`.

    The clip stands there once, or twice: clean and then noisy. Blocks read those before them of the
    first copy, and themselves in their own.

    Args:
        q: of all copies, or of the last alone, `[B, heads, copies · K · tokens, head_dim]`.
        k, v: of all.
        tokens: of a block.
        copies: of the clip.
    """
    k, v = (x.unflatten(2, (copies, -1, tokens)) for x in (k, v))
    blocks = k.shape[3]
    asked = q.unflatten(2, (-1, blocks, tokens)).transpose(2, 3)  # [B, heads, K, R, S, head_dim]
    rows = asked.shape[3]
    context, mask = _contexts(blocks, tokens, window, rows, q.device)

    def around(x: Tensor) -> Tensor:
        before = x[:, :, 0].index_select(2, context.flatten()).unflatten(2, context.shape)
        own = x[:, :, -rows:].transpose(2, 3)
        return torch.cat([before, own], dim=3).flatten(3, 4).flatten(0, 1)

    found = attend(asked.flatten(3, 4).flatten(0, 1), around(k), around(v), mask)
    return found.view(*asked.shape).transpose(2, 3).reshape(q.shape)


@lru_cache(maxsize=8)
def _contexts(
    blocks: int, tokens: int, window: ContextWindow, rows: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The earlier blocks that each reads `[K, W]`, filled up with any, and what is added to scores.

    Returns:
        and the mask `[1, K, rows · S, (W + rows) · S]`: 0 where one reads, else -inf.
    """
    with torch.inference_mode(False):  # a later call may train with it
        numbers = torch.arange(blocks, device=device)
        reads = window.reads(numbers[:, None], numbers)
        width = int(reads.sum(1).max())
        context = reads.int().argsort(dim=1, descending=True, stable=True)[:, :width]
        own = torch.eye(rows, dtype=torch.bool, device=device).expand(blocks, -1, -1)
        seen = torch.cat([reads.gather(1, context)[:, None].expand(-1, rows, -1), own], dim=2)
        seen = seen.repeat_interleave(tokens, 1).repeat_interleave(tokens, 2)
        return context, torch.zeros(seen.shape, device=device).masked_fill(~seen, -torch.inf)[None]
