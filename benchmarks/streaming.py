"""Memory and time of a streamed clip: does a rolling window hold them, however long it gets?"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from mmspec.eval.environment import environment
from mmspec.eval.measure.meters import PeakMemory
from mmspec.methods import SpecConfig
from mmspec.models.wan.window import ContextWindow
from mmspec.pipelines.video.components import VideoSizes

NOISE = 0.01  # of the peak: what a process's memory moves by itself
PART = 0.05  # of what a clip would take that forgets nothing


@dataclass
class Stream:
    """A clip that was streamed.

    Attributes:
        held: bytes of caches and decoder states, after each block.
        peak: most bytes in use while each block was made, by the device if it has its own memory,
            else by the process; empty where the platform doesn't tell.
        seconds: that each block took; the first one's begin with the call.
        drafted: how many of its blocks are the drafter's.
    """

    held: list[int] = field(default_factory=list)
    peak: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    drafted: int = 0


@dataclass
class StreamGrowth:
    """A method's memory for a clip of the model's own length, and for one many times longer.

    Attributes:
        short, long: the two clips.
        kept: bytes that the further blocks would take if none were forgotten.
        held_growth: most bytes held by the long clip less those by the short one.
        peak_growth: peak of the long clip's end, as many blocks as the short one has, less the
            short one's; None where the platform doesn't tell.
        grows: whether anything more is held, or the peak has grown by more than its own noise and a
            small part of `kept`.
    """

    short: Stream
    long: Stream
    kept: int
    held_growth: int = 0
    peak_growth: int | None = None
    grows: bool = False

    def __post_init__(self) -> None:
        self.held_growth = max(self.long.held) - max(self.short.held)
        self.grows = self.held_growth > 0
        if self.short.peak:
            before = max(self.short.peak)
            self.peak_growth = max(self.long.peak[-len(self.short.peak) :]) - before
            self.grows |= self.peak_growth > max(NOISE * before, PART * self.kept)


@dataclass
class StreamRecord:
    """Contents of `stream.json`.

    Attributes:
        blocks: of the short clip and of the long one.
        window: earlier blocks that a block reads, and the clip's first ones that stay.
        call: other arguments of the calls; None: the model's own.
    """

    prompt: str
    seed: int
    blocks: tuple[int, int]
    window: dict[str, int | None]
    call: dict[str, Any]
    environment: dict[str, Any]
    methods: dict[str, StreamGrowth] = field(default_factory=dict)


def measure_streams(
    pipe: Any,
    methods: Mapping[str, SpecConfig],
    prompt: str,
    times: int,
    window: ContextWindow,
    seed: int = 0,
    call: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] = lambda blocks: None,
) -> StreamRecord:
    """Stream a clip of the model's own length and one `times` as long by every method.

    Args:
        pipe: of video.
        window: what blocks read.
        call: arguments of the calls, but for the length and the window.
        progress: told of blocks as they are made.
    """
    sizes, arguments = VideoSizes(pipe.transformer, pipe.vae), dict(call or {})
    short = sizes.blocks(None)
    lengths = short, times * short
    record = StreamRecord(
        prompt,
        seed,
        lengths,
        {"blocks": window.blocks, "sink": window.sink},
        arguments,
        environment(pipe.device),
    )
    before = pipe.speculation
    try:
        for name, config in methods.items():
            pipe.enable_speculation(config)

            def streamed(blocks: int, window: ContextWindow = window) -> Stream:
                frames = sizes.frames(blocks)
                return stream(pipe, prompt, frames, seed, window, arguments, progress)

            # first, since the first calls of a process find memory that they keep; a cache that
            # keeps all has room for the whole clip from the start
            one, two = (streamed(blocks, ContextWindow()).held[0] for blocks in (1, 2))
            usual, longer = (streamed(blocks) for blocks in lengths)
            record.methods[name] = StreamGrowth(
                usual, longer, kept=(lengths[1] - lengths[0]) * (two - one)
            )
    finally:
        pipe.enable_speculation(before)
    return record


def stream(
    pipe: Any,
    prompt: str,
    num_frames: int,
    seed: int,
    window: ContextWindow,
    call: Mapping[str, Any],
    progress: Callable[[int], None] = lambda blocks: None,
) -> Stream:
    """A clip whose frames nobody keeps, and the memory of each of its blocks."""
    found, meters = Stream(), [PeakMemory(pipe.device)]
    shown = [time.perf_counter()]

    def on_block(pipe: Any, block: Any) -> None:
        shown.append(time.perf_counter())
        found.seconds.append(shown[-1] - shown[-2])
        found.held.append(pipe.nbytes)
        found.drafted += block.made_by == "drafter"
        if (peak := meters.pop().read()) is not None:
            found.peak.append(peak)
        meters.append(PeakMemory(pipe.device))
        progress(1)

    pipe(
        prompt,
        num_frames=num_frames,
        generator=torch.Generator().manual_seed(seed),
        window=window,
        output_type="none",
        callback_on_block=on_block,
        **call,
    )
    return found
