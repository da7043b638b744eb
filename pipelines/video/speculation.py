"""Run of a video call: the engine of a configuration, block by block, and its snapshots."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ...draft.guarded import GuardedDrafter
from ...draft.null import NullDrafter
from ...draft.side_thread import SideThread
from ...draft.video.block_video import BlockVideoDrafter
from ...draft.video.block_video_ahead import AheadBlockVideoDrafter
from ...engine.accept.routing import RewardMeanRule, RewardRankRule, RewardThresholdRule
from ...engine.coins import ProductionCoins
from ...engine.draft import Context
from ...engine.length.constant import ConstantLength
from ...engine.length.guard import Guard
from ...engine.loop import run
from ...engine.protocols import AcceptanceRule, Engine
from ...errors import InputError
from ...methods import ResolvedConfig
from ...methods.parts.blocks import BlockVideoOptions, RankOptions
from ...models.wan.clips import WanClips
from ...models.wan.target import VideoTarget
from ...rewards.frames import FrameJudge
from ..base import owned, row_seeds
from ..load_switch import watched
from ..output import VideoBlock
from .pace import Pace
from .stats import VideoStats

MEMORIES: dict[type, tuple[str, ...]] = {  # of rules, of a clip
    RewardRankRule: ("seen", "owed"),
    RewardMeanRule: ("stood",),
}
Snapshot = dict[str, Tensor]
OutputType = Literal["pil", "np", "pt", "latent", "none"]


def judged(config: ResolvedConfig) -> bool:
    """True if a configuration asks a reward."""
    return config.drafts and config.rule.rewarded


@dataclass
class VideoRun:
    """The clips of one call.

    Attributes:
        target: makes blocks; of "drafter-only" by the small model.
        small: clips of the small model; None: nobody drafts.
        judge: of drafted frames, if the rule asks one.
        pace: what blocks are seen to take, and plainly would.
        guard: of the blocks that are drafted; None: none watches.
    """

    config: ResolvedConfig
    target: VideoTarget
    small: WanClips | None
    judge: FrameJudge | None
    seeds: list[int]
    stats: VideoStats
    on_engine: Callable[[Engine], None] | None = None
    guard: Guard | None = None

    def __post_init__(self) -> None:
        # of the plain loop one that asks nobody
        plain = RewardThresholdRule(math.inf)
        self.rule: AcceptanceRule = self.config.build_rule({}) if self.config.drafts else plain
        self.options = self.config.of(BlockVideoOptions)
        self.drafter: GuardedDrafter | None = None
        self._whole = True  # all clips end at the same block
        self._ahead: AheadBlockVideoDrafter | None = None
        if self.small is not None:
            given = self.small, self.target.clips.steps, self.stats.part
            ahead = self.options.draft_ahead
            if self.device.type == "cuda" if ahead is None else ahead:
                self._ahead = AheadBlockVideoDrafter(*given, SideThread(self.device))
            self.drafter = GuardedDrafter(self._ahead or BlockVideoDrafter(*given), None, 1)
        self.stats.method = self.config.method
        self.stats.contract = self.config.contract

    @property
    def blocks(self) -> int:
        """Blocks of every clip so far."""
        return self.target.clips.blocks(0)

    @property
    def device(self) -> torch.device:
        return self.target.clips.model.patch_embedding.weight.device

    @property
    def nbytes(self) -> int:
        """Bytes of caches and decoder states."""
        return self.target.nbytes + (0 if self.small is None else self.small.nbytes)

    def run(self, blocks: int, on_block: Callable[[Context], bool]) -> None:
        """Emit so many more blocks of every clip; `on_block` returns True to stop."""
        clips, over, device = self.target.clips, self.blocks, self.device
        first = torch.zeros(clips.rows, 1, *clips.shape, dtype=clips.dtype, device=device)
        engine = Engine(
            self.target,
            self.drafter or NullDrafter(),
            self.rule,
            ConstantLength(1, after=max(0, self.options.forced_blocks - over)),
            ProductionCoins(self.seeds, device, over),
        )
        watched(engine, self.guard, prompted=False)
        if self.on_engine is not None:
            self.on_engine(engine)
        fixed = self.stats.seconds.get("encode", 0.0)
        goal = self.config.of(RankOptions)
        total = clips.rows * blocks
        self.pace = Pace(goal.target_speedup, total, goal.draft_share, fixed)

        def observed(context: Context) -> bool:
            self._observe()
            self._keep(self.pace)
            self._whole = True
            stop = on_block(context)
            self._whole = stop
            return stop

        self._whole = False
        try:
            context = run(engine, clips.rows, blocks, self.stats, observed, device, first, window=1)
        finally:
            if self._ahead is not None:
                self.stats.wasted = self._ahead.wasted
        self._whole = self._whole or all(context.finished)  # else it broke off within a block
        self.pace.close()

    def _observe(self) -> None:
        small = self.config.drafter_only
        if small:  # the target took no part
            for counts in (self.stats.calls, self.stats.target_tokens):
                counts[:] = [0] * len(counts)
        else:
            self._count(self.stats.layers, self.target.layers)
            self._count(self.stats.reused_layers, self.target.reused)
        for row, block in enumerate(self.target.emitted):
            self.stats.made_by[row].append("drafter" if block.drafted or small else "target")
            self.stats.rewards[row].append(block.rewards.tolist())
        if self.drafter is not None:
            self.stats.fault = self.drafter.fault
        if self._ahead is not None:
            self.stats.wasted = self._ahead.wasted
        if self.judge is not None:
            self.stats.unjudged, self.stats.reason = self.judge.failures, self.judge.reason

    @staticmethod
    def _count(counts: list[int], more: list[int]) -> None:
        counts[:] = [count + new for count, new in zip(counts, more, strict=True)]

    def _keep(self, pace: Pace) -> None:
        """Look at a round; as many drafts as a target speed-up needs stand in the next."""
        emitted = self.target.emitted
        tried = sum(len(block.rewards) > 0 for block in emitted)
        made, read, clips = self.target.made, self.target.surplus, self.target.clips
        usual = made * (clips.steps + 1)  # each block, and the one before it
        part, since = read / max(1, usual + read), pace.before.get("regenerate", 0.0)
        self.stats.move("regenerate", "commit", part, since)
        unread = sum(max(0, clips.waiting(row) - 1) for row in range(clips.rows))
        share = pace.observe(self.stats.parts, tried, made, len(emitted), read, unread)
        if isinstance(self.rule, RewardRankRule) and pace.target_speedup is not None:
            self.rule.draft_share, self.rule.owed = share, None  # the pace makes up for what stood

    def made(self) -> Iterator[VideoBlock]:
        """The last round's blocks, one a clip; without frames if nobody looks at them."""
        for row, block in enumerate(self.target.emitted):
            maker, rewards = self.stats.made_by[row][-1], self.stats.rewards[row][-1]
            latents, frames = owned(block.latents), owned(block.frames)
            yield VideoBlock(row, self.blocks - 1, frames, maker, rewards, latents)

    def snapshot(self) -> Snapshot:
        """State for `restore`, as tensors of their own that a safetensors file can hold."""
        if not self._whole:
            raise InputError("the last call broke off within a block: its clips can't go on")
        found = {"seeds": torch.tensor(self.seeds), "blocks": torch.tensor([self.blocks])}
        for name in MEMORIES.get(type(self.rule), ()):
            memory = getattr(self.rule, name)
            found |= {} if memory is None else {name: memory}
        for row in range(len(self.seeds)):
            for name, part in self._parts():
                kept = part.snapshot(row)
                found |= {f"{name}.{row}.{key}": tensor for key, tensor in kept.items()}
        return {name: owned(tensor.contiguous()) for name, tensor in found.items()}

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot."""
        for row in range(len(self.seeds)):
            for name, part in self._parts():
                start = f"{name}.{row}."
                kept = {
                    k.removeprefix(start): t for k, t in snapshot.items() if k.startswith(start)
                }
                if not kept:
                    raise InputError(
                        f"the snapshot has no cache of the {name}; go on by a method of the kind "
                        "that it began with"
                    )
                part.restore(row, kept)
        for name in MEMORIES.get(type(self.rule), ()):
            memory = snapshot.get(name)
            setattr(self.rule, name, None if memory is None else memory.to(self.device))

    def _parts(self) -> Sequence[tuple[str, VideoTarget | WanClips]]:
        target = ("target", self.target)
        if self.small is None or self.stats.fault is not None:  # then it knows the clips no more
            return [target]
        return [target, ("drafter", self.small)]


def begun(
    rows: int, generator: torch.Generator | list[torch.Generator] | None, resume: Snapshot | None
) -> tuple[list[int], int]:
    """Seeds of the clips, and the blocks that each has already."""
    if resume is None:
        return row_seeds(generator, rows), 0
    try:
        (done,) = resume["blocks"].tolist()
        seeds = [int(seed) for seed in resume["seeds"].tolist()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError("resume takes what pipe.snapshot() gave") from error
    if generator is not None or len(seeds) != rows:
        raise InputError(
            f"resume goes on with {len(seeds)} clips and their seeds: give as many prompts and no "
            "generator"
        )
    return seeds, int(done)


def joined(clips: list[list[Any]], output_type: OutputType) -> Any:
    """Frames of clips given block by block, see `VideoOutput`; empty lists before the first."""
    if output_type == "none":
        return None
    if output_type == "pil" or not any(clips):
        return [[frame for block in clip for frame in block] for clip in clips]
    if output_type == "np":
        return np.stack([np.concatenate(clip) for clip in clips])
    with torch.inference_mode(False):
        return torch.stack([torch.cat(clip) for clip in clips])
