"""Clips that one block-causal Wan makes, block by block: their caches, kept true at little cost."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...engine.coins import RoundCoins
from ...errors import InputError
from ...files import parse_json, to_json
from .reuse import BlockReuse
from .sampler import FewStepSampler, denoise_block
from .transformer import WanTransformer
from .window import ContextWindow

# blocks of a clip that may wait: so many, but no more tokens than one call reads at little memory;
# few streams have as many drafts in a row
LEAST_WAITING, MOST_WAITING, MOST_TOKENS = 4, 16, 2**15
MOST_STEPS = 1000  # whose noise has places of its own


class WanClips:
    """A cache for every clip, so that no clip's blocks depend on the others'.

    A block that joins a clip waits, and its keys and values are written along with the next block
    that this model makes of the clip, which takes no call of its own, or in one call once
    `most_waiting` have gathered. Those that wait when a clip ends are never read.

    Args:
        model: makes the blocks.
        texts: features of every clip's text `[G, T, D]`; under guidance G is 2 and what the
            unconditional row is told stands behind.
        height, width: of the latents.
        sampler: steps from noise to a block.
        limit: blocks of a clip at most; a rolling window needs none.
        window: another than the model's own.

    Attributes:
        before_step: called before every denoising step; what it raises breaks a block off, and
            clips can't go on from there.

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
        self.rows, self.steps = len(texts), len(sampler.steps)  # clips B, denoising steps S
        self.shape = (model.config.num_frame_per_block, model.config.in_dim, height, width)
        self.before_step: Callable[[], None] = lambda: None
        self._caches = [model.start(text, height, width, limit, window) for text in texts]
        self._waiting: list[list[Tensor]] = [[] for _ in texts]
        self._calls, self._read, self._spared = ([0] * len(texts) for _ in range(3))

    @property
    def most_waiting(self) -> int:
        """Blocks of a clip that are written together."""
        fitting = MOST_TOKENS // self._caches[0].tokens
        return max(LEAST_WAITING, min(MOST_WAITING, fitting))

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of latents: float32 at least, since half precision rounds steps away."""
        return torch.promote_types(self._caches[0].data.dtype, torch.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of all caches; what waits is less than `most_waiting` blocks of latents a clip."""
        return sum(cache.nbytes for cache in self._caches)

    def blocks(self, row: int) -> int:
        """Blocks of a clip so far."""
        return self._caches[row].blocks + len(self._waiting[row])

    def waiting(self, row: int) -> int:
        """Blocks of a clip whose keys and values are not written yet."""
        return len(self._waiting[row])

    def noise(self, coins: RoundCoins, steps: int, behind: int = 0) -> Tensor:
        """The noise of every clip's next block `[B, S, F, C, h, w]`: the initial one, then that of
        each further step.

        It belongs to the clip and the block's place alone: whoever makes the block starts from it,
        in however many steps. `behind`: of the block so many places behind the next.
        """
        data = self._caches[0].data
        blocks = [self.blocks(row) + behind for row in range(self.rows)]
        first = torch.tensor(blocks, device=data.device)
        positions = first[:, None] * MOST_STEPS + torch.arange(steps, device=data.device)
        noise = coins.noise(positions, torch.Size(self.shape).numel())
        return noise.view(self.rows, steps, *self.shape).to(self.dtype)

    def make(self, row: int, noise: Tensor) -> Tensor:
        """A clip's next block `[F, C, h, w]`, which does not join, from its noise.

        Args:
            noise: `[S or more, F, C, h, w]`.
        """
        known, cache, sampler = self._pending(row), self._caches[row], self.sampler

        def draw(step: int) -> Tensor:
            return noise[step][None]

        block = denoise_block(self.model, cache, noise[:1], sampler, draw, known, self.before_step)
        self._count(row, self.steps, self.steps + len(self._waiting[row]))
        self._waiting[row] = []
        return block[0]

    def foresee(self, row: int, block: Tensor, noise: Tensor) -> Tensor:
        """The block that `make` would give if this one joined a clip of which none waits.

        The clip stays where it is. Keys and values of the block lie behind its last, where nobody
        reads and the next block that does join is written; `adopt` takes them as they are.

        Args:
            block: `[F, C, h, w]`.
            noise: of the block behind it, `[S or more, F, C, h, w]`.
        """
        assert not self._waiting[row], "more than one block could not be taken back"
        cache = self._caches[row]
        blocks = cache.blocks
        self.join(row, block)
        try:
            return self.make(row, noise)
        finally:
            cache.rewind(blocks)
            self._waiting[row] = []

    def adopt(self, row: int) -> None:
        """Commit the waiting block, which `foresee` has read already."""
        self._caches[row].advance(len(self._waiting[row]))
        self._waiting[row] = []

    def join(self, row: int, block: Tensor) -> None:
        """Append a block `[F, C, h, w]` to a clip, whoever made it."""
        self._waiting[row].append(block.to(self.dtype))
        if len(self._waiting[row]) >= self.most_waiting:
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

    def reuse(self, kept: Sequence[BlockReuse]) -> None:
        """Let denoising steps that write nothing reuse residuals from here on, clip by clip."""
        for cache, own in zip(self._caches, kept, strict=True):
            cache.reuse = own

    def spared(self) -> list[int]:
        """Layers per clip that did not run in its forward passes, since this was last asked."""
        found = [0 if cache.reuse is None else cache.reuse.spared for cache in self._caches]
        before, self._spared = self._spared, found
        return [now - then for now, then in zip(found, before, strict=True)]

    def snapshot(self, row: int) -> dict[str, Tensor]:
        """A clip's state for `restore`, as tensors of their own."""
        waiting = self._pending(row)
        none = torch.zeros(0, *self.shape[1:], dtype=self.dtype)
        made = to_json(self._made_by()).encode()
        return {
            **self._caches[row].snapshot(),
            "made_by": torch.tensor(list(made), dtype=torch.uint8),
            "waiting": none if waiting is None else waiting[0].clone(),
        }

    def restore(self, row: int, snapshot: dict[str, Tensor]) -> None:
        """Go on with a clip from a snapshot of clips of the same model, size, window and steps.

        Raises:
            InputError: it is of others.
        """
        try:
            made = dict(parse_json(bytes(snapshot["made_by"].tolist()), "the snapshot"))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("this is no snapshot of a clip") from error
        for what, mine in self._made_by().items():
            if (theirs := made.get(what, mine)) != mine:  # earlier versions told fewer
                raise InputError(
                    f"the snapshot is of clips of another {what}: {theirs}, not {mine}"
                )
        self._caches[row].restore(snapshot)
        waiting = snapshot.get("waiting")
        if waiting is None or waiting.shape[1:] != self.shape[1:] or len(waiting) % self.shape[0]:
            raise InputError("the snapshot is of another size of clips")
        device = self._caches[row].data.device
        blocks = waiting.to(device, self.dtype).split(self.shape[0])
        self._waiting[row] = list(blocks) if len(waiting) else []  # `split` makes one of none

    def _made_by(self) -> dict[str, Any]:
        """Settings that a snapshot's clips and those that go on from it must share."""
        window = self._caches[0].window
        weights = hashlib.sha256()
        for name in ("patch_embedding", "head.head"):
            weight = self.model.get_parameter(f"{name}.weight").detach().cpu().contiguous()
            weights.update(weight.view(torch.uint8).numpy().tobytes())
        return {
            "model": weights.hexdigest()[:8],
            "window": [window.blocks, window.sink],
            "steps": list(self.sampler.steps),
            "shift": self.sampler.shift,
            "guidance": self.sampler.guidance_scale,
            "renoise": self.sampler.renoise,
            "context noise": self.model.config.context_noise,
            "sample frames": self.model.config.sample_frames,
        }

    def _pending(self, row: int) -> Tensor | None:
        """The frames that wait, `[1, n · F, C, h, w]`; None: none do."""
        waiting = self._waiting[row]
        return torch.cat(waiting)[None] if waiting else None

    def _count(self, row: int, calls: int, blocks: int) -> None:
        self._calls[row] += calls
        self._read[row] += blocks
