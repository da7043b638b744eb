"""Clips that one block-causal Wan makes, block by block: their caches, kept true at little cost."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..engine.coins import RoundCoins
from ..errors import InputError
from .wan import WanTransformer
from .wan_sampler import FewStepSampler, denoise_block
from .wan_window import ContextWindow

MOST_WAITING = 4  # blocks of a clip, each some latents of memory


class WanClips:
    """A cache for every clip, so that no clip's blocks depend on the others'.

    A block that joins a clip waits, and its keys and values are written along with the next block
    that this model makes of the clip, or in one call once a few have gathered.

    Args:
        model: makes the blocks.
        texts: features of every clip's text `[G, T, D]`; under guidance G is 2 and what the
            unconditional row is told stands behind.
        height, width: of the latents.
        sampler: steps from noise to a block.
        limit: blocks of a clip at most; a rolling window needs none.
        window: another than the model's own.

    Raises:
        InputError: the latents can't be cut into tokens, or a global window has no limit.
    """

    def __init__(
        self,
        model: WanTransformer,
        texts: Sequence[Tensor],
        height: int,
        width: int,
        sampler: FewStepSampler,
        limit: int | None = None,
        window: ContextWindow | None = None,
    ) -> None:
        self.model, self.sampler = model, sampler
        self.shape = (model.config.num_frame_per_block, model.config.in_dim, height, width)
        self._caches = [model.start(text, height, width, limit, window) for text in texts]
        self._waiting: list[list[Tensor]] = [[] for _ in texts]
        self._calls, self._read = [0] * len(texts), [0] * len(texts)

    @property
    def rows(self) -> int:
        """B clips."""
        return len(self._caches)

    @property
    def dtype(self) -> torch.dtype:
        """Of latents: float32 at least, since half precision rounds steps away."""
        return torch.promote_types(self._caches[0].data.dtype, torch.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of all caches; what waits is less than `MOST_WAITING` blocks of latents a clip."""
        return sum(cache.nbytes for cache in self._caches)

    def blocks(self, row: int) -> int:
        """Blocks of a clip so far."""
        return self._caches[row].blocks + len(self._waiting[row])

    def noise(self, coins: RoundCoins) -> Tensor:
        """The noise of every clip's next block `[B, S, F, C, h, w]`: the initial one, then that of
        each further step.

        It belongs to the clip and the block's place alone: whoever makes the block starts from it.
        """
        steps = len(self.sampler.steps)
        data = self._caches[0].data
        first = torch.tensor([self.blocks(row) for row in range(self.rows)], device=data.device)
        places = first[:, None] * steps + torch.arange(steps, device=data.device)
        noise = coins.noise(places, torch.Size(self.shape).numel())
        return noise.view(self.rows, steps, *self.shape).to(self.dtype)

    def make(self, row: int, noise: Tensor) -> Tensor:
        """A clip's next block `[F, C, h, w]` from its noise `[S, F, C, h, w]`; it does not join."""
        known = self._pending(row)
        block = denoise_block(
            self.model,
            self._caches[row],
            noise[:1],
            self.sampler,
            lambda step: noise[step][None],
            known,
        )
        steps = len(self.sampler.steps)
        self._count(row, steps, steps + len(self._waiting[row]))
        self._waiting[row] = []
        return block[0]

    def join(self, row: int, block: Tensor) -> None:
        """A clip goes on with this block `[F, C, h, w]`, whoever made it."""
        self._waiting[row].append(block.to(self.dtype))
        if len(self._waiting[row]) >= MOST_WAITING:
            self.settle(row)

    def settle(self, row: int) -> None:
        """Write keys and values of the blocks that wait."""
        known = self._pending(row)
        if known is not None:
            cache = self._caches[row]
            self.model.commit(known.repeat(cache.rows, 1, 1, 1, 1), cache)
            self._count(row, 1, len(self._waiting[row]))
            self._waiting[row] = []

    def taken(self) -> tuple[list[int], list[int]]:
        """Forward passes per clip since this was last asked, and blocks in them."""
        taken = self._calls, self._read
        self._calls, self._read = [0] * self.rows, [0] * self.rows
        return taken

    def snapshot(self, row: int) -> dict[str, Tensor]:
        """All that `restore` needs to go on with a clip from here, as tensors of their own."""
        waiting = self._pending(row)
        none = torch.zeros(0, *self.shape[1:], dtype=self.dtype)
        return {
            **self._caches[row].snapshot(),
            "waiting": none if waiting is None else waiting[0].clone(),
        }

    def restore(self, row: int, snapshot: dict[str, Tensor]) -> None:
        """Go on with a clip from a snapshot of clips of the same model, size and window.

        Raises:
            InputError: it is of others.
        """
        self._caches[row].restore(snapshot)
        waiting = snapshot.get("waiting")
        if waiting is None or waiting.shape[1:] != self.shape[1:] or len(waiting) % self.shape[0]:
            raise InputError("the snapshot is of another size of clips")
        device = self._caches[row].data.device
        self._waiting[row] = list(waiting.to(device, self.dtype).split(self.shape[0]))

    def _pending(self, row: int) -> Tensor | None:
        """The frames that wait, `[1, n · F, C, h, w]`; None: none do."""
        waiting = self._waiting[row]
        return torch.cat(waiting)[None] if waiting else None

    def _count(self, row: int, calls: int, blocks: int) -> None:
        self._calls[row] += calls
        self._read[row] += blocks
