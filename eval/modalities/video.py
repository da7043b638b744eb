"""Clips made block by block: timed whole, judged by the clip world's detector, routed by a reward.

A clip that is timed is judged too: the same one has its seconds and its quality.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from PIL import Image

from ...errors import InputError
from ...pipelines.video.components import VideoSizes
from ...pipelines.video.pipeline import VideoPipeline
from ...pipelines.video.speculation import judged
from ...rewards.registry import REWARDS, load_reward
from ...worlds.video_world.vocabulary import Timing
from ..contact_sheet import contact_sheet
from ..judges.clips import ClipJudge
from ..measure.routing import routed_rows, routing_notes
from ..run.job import Job, Plan
from ..run.run_folder import RunFolder
from ..variants import method_variant
from .base import Rows
from .bench import Judged
from .drawing import DrawingBench, DrawingModality


class VideoBench(DrawingBench):
    """Bench of clips; a timed clip is judged too."""

    def __init__(self, job: Job, pipe: Any) -> None:
        super().__init__(job, pipe)
        self.sizes = VideoSizes(pipe.transformer, pipe.vae)
        self.judges_timed = bool(job.suite.metrics)
        if pipe.reward is None:  # of a process of its own, whose pipeline nobody checked
            _take_reward(job, pipe)

    @cached_property
    def judge(self) -> ClipJudge:
        """Judge of clips whose blocks are the pipeline's."""
        latents = int(self.pipe.transformer.config.num_frame_per_block)
        return ClipJudge(Timing(latents, self.sizes.time))

    def resolution(self) -> str:
        """Size of clips: frames, then pixels down and across."""
        sizes, call = self.sizes, self.job.call
        frames = call.get("num_frames") or sizes.frames(sizes.blocks(None))
        rows, columns = sizes.latents(call.get("height"), call.get("width"))
        return f"{frames} frames of {rows * sizes.space}×{columns * sizes.space} px"

    def outputs(self, out: Any) -> Any:
        return out.frames

    def picture(self, out: Any, row: int) -> Image.Image:
        return contact_sheet(self.sizes.split(out.frames[row], out.made_by[row]))

    def scores(self, items: Sequence[Any], outputs: Any) -> list[Judged]:
        wanted = self.job.suite.metrics
        found = [self.judge(*pair) for pair in zip(items, outputs, strict=True)]
        return [({n: v for n, v in of.items() if n in wanted}, why) for of, why in found]


class VideoModality(DrawingModality):
    """Measurement of video generation."""

    pipeline = VideoPipeline
    takes_device_map = False
    bench = VideoBench

    def check(self, job: Job, todo: Plan, pipe: Any) -> None:
        if todo.batches != (1,):
            raise InputError("--batch-sizes are for pictures: clips of a batch take turns")
        asked = _rewards(job)
        if len(asked) > 1 and set(asked) & set(job.files):
            raise InputError(f"rows ask {' and '.join(asked)}: one run has weights of one reward")
        strange = [name for name in job.files if name not in ("prompts", *asked)]
        if strange:
            raise InputError(f"suite {job.suite.name} has no use for {', '.join(strange)}")
        for name in asked:
            weights = REWARDS.get(name).weights
            if weights and not job.file(name, weights).exists():
                raise InputError(f"no {job.files[name]} ({name} should be {weights})")
        if pipe is not None:
            _take_reward(job, pipe)
        super().check(job, todo, pipe)

    def check_rows(self, job: Job, pipe: Any) -> None:
        super().check_rows(job, pipe)
        for name in job.rows if job.suite.metrics else ():
            call = {**job.call, **method_variant(job, name, pipe).own}
            sizes = VideoSizes(pipe.transformer, pipe.vae)
            height, width = sizes.latents(call.get("height"), call.get("width"))
            if height != width:
                raise InputError(f"{name}: the judge takes square frames: set height and width")

    def complete(self, job: Job, folder: RunFolder, rows: Rows) -> list[str]:
        routed_rows(rows, folder.log)
        return [*super().complete(job, folder, rows), *routing_notes(folder.log, rows)]


def _rewards(job: Job) -> list[str]:
    """The rewards that the rows of a job route by."""
    configs = [config.resolve("video") for config in job.configs.values()]
    asked = [config.options.get("reward") for config in configs if judged(config)]
    return [name for name in dict.fromkeys(asked) if name is not None]


def _take_reward(job: Job, pipe: Any) -> None:
    """Give a pipeline the reward whose weights a job names."""
    for name in _rewards(job):
        if name in job.files:
            pipe.reward = load_reward(name, Path(job.files[name]), job.device)
