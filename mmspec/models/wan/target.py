"""Block-causal video as a target: drafts are decoded and judged, rejected blocks made again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.laws import Rewards, TargetError
from ...errors import InputError
from .clips import WanClips
from .vae import State, decode_block

Judge = Callable[[int, Tensor, Tensor | None, int], Tensor]
"""Rewards `[T]` of the frames `[T, 3, H, W]` of a clip's block, in [-1, 1]; NaN where none is.

After the frames come the last one before the block, None at the clip's start, and its number.
"""
Part = Callable[[str], AbstractContextManager[Any]]
"""Takes the time of a part of the work."""

Decoded = tuple[Tensor, State]
"""Frames of a block, and the decoder's state behind it."""


@dataclass
class EmittedBlock:
    """A block that joined a clip.

    Attributes:
        latents: `[F, C, h, w]`.
        frames: `[T, 3, H, W]` in [-1, 1]; T is 0 if nobody looks at them.
        drafted: whether it is the drafter's.
        rewards: what the frames of the drafter's block were judged by, `[T]`; `[0]` if nobody did.
    """

    latents: Tensor
    frames: Tensor
    drafted: bool
    rewards: Tensor


class VideoTarget:
    """Target of video: makes rejected blocks again, and rewards the frames of drafts.

    Blocks of drafts are `[B, 1, F, C, h, w]`. All clips have as many blocks. The decoder of frames
    goes on from its state before a block, so a rejected one leaves no trace in it.

    Args:
        clips: of the large model.
        vae: decodes latents, see `decode_block`.
        judge: rewards the frames of drafts; None: nobody judges.
        part: is told what the time goes to: "decode", "reward", "commit" and making blocks.
        making: what that is called.
        looked_at: frames of emitted blocks are decoded as they join; if not, and nobody judges,
            only for a snapshot, which holds the decoder's state.

    Attributes:
        emitted: of the last round, a block a clip.
        made: blocks that were made in the last round.
        surplus: blocks that were read for it, beside the one before each: drafts that stood, all at
            once.
        layers, reused: layers that ran for each clip in the last round, and those that added what
            they had kept.
    """

    def __init__(
        self,
        clips: WanClips,
        vae: Any,
        judge: Judge | None = None,
        part: Part = lambda name: nullcontext(),
        making: str = "regenerate",
        looked_at: bool = True,
    ) -> None:
        self.clips, self.vae, self.judge = clips, vae, judge
        self.part, self.making = part, making
        self._looked_at = looked_at or judge is not None
        self.emitted: list[EmittedBlock] = []
        self.made = self.surplus = 0
        self.layers, self.reused = [0] * clips.rows, [0] * clips.rows
        self._states: list[State] = [{} for _ in range(clips.rows)]
        self._unseen: list[list[Tensor]] = [[] for _ in range(clips.rows)]  # blocks behind it
        self._shown: list[Tensor | None] = [None] * clips.rows  # the last frame of each
        self._decoded: list[Decoded | None] = [None] * clips.rows
        self._rewards = torch.zeros(clips.rows, 0)

    def start(self, rows: int) -> None:
        """Clips begin, or go on, where they stand."""

    @property
    def nbytes(self) -> int:
        """Bytes of caches, of decoder states and of the blocks that are not decoded."""
        states = (tensor for state in self._states for tensor in state.values())
        unseen = (block for blocks in self._unseen for block in blocks)
        return self.clips.nbytes + sum(tensor.nbytes for tensor in (*states, *unseen))

    def score(self, context: Context, draft: Draft) -> Scores:
        """Rewards of the drafted blocks' frames `[B, N, T]`; T is 0 if nobody judges."""
        rows, nodes = draft.tokens.shape[:2]
        self._decoded, self.made, self.surplus = [None] * rows, 0, 0
        self._rewards = torch.zeros(rows, 0, dtype=torch.float64)
        if nodes and self.judge is not None:
            self._rewards = torch.stack(
                [self._judged(row, self.judge, draft) for row in range(rows)]
            )
        frames = self._rewards.to(draft.tokens.device)[:, None].expand(-1, nodes, -1)
        return Scores(Rewards(frames), calls=0)

    def sample_next(
        self, context: Context, draft: Draft, verdict: Verdict, coins: RoundCoins
    ) -> Verdict:
        """The target's own blocks in place of those that fell, from the drafts' own noise.

        Raises:
            TargetError: a block is no numbers.
        """
        steps = self.clips.steps
        noise = self.clips.noise(coins, steps) if draft.noise is None else draft.noise[:, 0]
        blocks = list(verdict.emitted[:, 0])
        for row, kept in enumerate(verdict.accepted.tolist()):
            if not kept:
                blocks[row], self._decoded[row] = self._own(row, noise[row])
        emitted = torch.stack(blocks)[:, None]
        return replace(verdict, emitted=emitted, last=emitted)

    def commit(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        """The emitted blocks join the clips; if somebody looks they are decoded, if not yet."""
        self.emitted = []
        for row, kept in enumerate(verdict.accepted.tolist()):
            latents = verdict.emitted[row, 0]
            if self._looked_at:
                frames = self._show(row, self._decoded[row] or self._decode(row, latents))
            else:
                frames = latents.new_empty(0, 3, 0, 0)
                self._unseen[row].append(latents)
            with self.part("commit"):
                self.clips.join(row, latents)
            self.emitted.append(EmittedBlock(latents, frames, bool(kept), self._rewards[row]))
        verdict.calls, verdict.target_tokens = self.clips.taken()
        self.reused, depth = self.clips.spared(), len(self.clips.model.layers)
        pairs = zip(verdict.calls, self.reused, strict=True)
        self.layers = [calls * depth - reused for calls, reused in pairs]

    def snapshot(self, row: int) -> dict[str, Tensor]:
        """A clip's state for `restore`, as tensors of their own."""
        self._catch_up(row)
        state = {f"decoder.{name}": tensor.clone() for name, tensor in self._states[row].items()}
        shown = self._shown[row]
        last = {} if shown is None else {"shown": shown.clone()}
        return {**self.clips.snapshot(row), **state, **last}

    def restore(self, row: int, snapshot: dict[str, Tensor]) -> None:
        """Go on with a clip from a snapshot.

        Raises:
            InputError: it is of other clips.
        """
        self.clips.restore(row, snapshot)
        device = next(self.vae.parameters()).device
        state = {
            name.removeprefix("decoder."): tensor.to(device, copy=True)  # aligned, as computed ones
            for name, tensor in snapshot.items()
            if name.startswith("decoder.")
        }
        shown = snapshot.get("shown")
        if len({bool(state), shown is not None, self.clips.blocks(row) > 0}) > 1:
            raise InputError("the snapshot lacks the decoder's state")
        self._states[row] = state
        self._shown[row] = None if shown is None else shown.to(device, copy=True)

    def _own(self, row: int, noise: Tensor) -> tuple[Tensor, Decoded | None]:
        """The target's next block of a clip `[F, C, h, w]`, and its frames if they are there."""
        self.made, self.surplus = self.made + 1, self.surplus + max(0, self.clips.waiting(row) - 1)
        with self.part(self.making):
            block = self.clips.make(row, noise)
        if not block.isfinite().all():
            number = self.clips.blocks(row)
            raise TargetError(f"the target's block {number} of row {row} is no numbers")
        return block, None

    def _judged(self, row: int, judge: Judge, draft: Draft) -> Tensor:
        """What the scores hold of a row's draft, `[T]`: rewards of its frames."""
        self._decoded[row] = frames, _ = self._decode(row, draft.tokens[row, 0])
        return self._reward(row, judge, frames)

    def _reward(self, row: int, judge: Judge, frames: Tensor) -> Tensor:
        with self.part("reward"):
            number = self.clips.blocks(row)
            return judge(row, frames, self._shown[row], number).double().cpu()

    def _decode(self, row: int, latents: Tensor) -> Decoded:
        """Frames of a clip's next block, and the decoder's state behind it."""
        with self.part("decode"):
            return self._decoded_block(row, latents)

    def _decoded_block(self, row: int, latents: Tensor) -> Decoded:
        frames, state = decode_block(self.vae, latents[None].to(self.vae.dtype), self._states[row])
        return frames[0], state

    def _show(self, row: int, decoded: Decoded) -> Tensor:
        """Frames of a block that joins a clip, whose decoder goes on behind it."""
        frames, self._states[row] = decoded
        self._shown[row] = frames[-1].contiguous()  # as `restore` gives it back
        return frames

    @torch.inference_mode()
    def _catch_up(self, row: int) -> None:
        """Decode the blocks of a clip that nobody has looked at, where the decoder is by now."""
        unseen, device = self._unseen[row], next(self.vae.parameters()).device
        while unseen:  # whatever breaks in between, the rest waits
            self._states[row] = {name: x.to(device) for name, x in self._states[row].items()}
            self._show(row, self._decoded_block(row, unseen[0].to(device)))
            del unseen[0]
