"""Clips made block by block: timed whole, judged by the clip world's detector, routed by a reward.

A clip that is timed is judged too: the same one has its seconds and its quality.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from PIL import Image

from ...config import SpecConfig
from ...engine.stats import SpecStats
from ...errors import InputError
from ...pipelines.video.pipeline import VideoPipeline
from ...pipelines.video.sizes import VideoSizes
from ...pipelines.video.speculation import judged
from ...pipelines.video.stats import VideoStats
from ...rewards.registry import REWARDS, load_reward
from ...worlds.video_world.timing import Timing
from ..contact_sheet import contact_sheet
from ..data.clip_prompts import read_clip_prompts
from ..data.prompts import prompt_files
from ..judges.clips import ClipJudge, ClipMetric
from ..measure.quality import Judged, QualityWorker
from ..measure.routing import routed_rows, routing_notes
from ..measure.speed import speed_line
from ..run.job import Job, Outcome, Plan, Unit
from ..run.run_folder import RunFolder
from ..run.samples import SampleLog
from ..schema import MethodResult
from ..suite import Suite
from ..variants import arm
from .base import Findings, PromptItem, runnable
from .drawing import DrawingBench, DrawingModality

FIXED = {
    *("self", "prompt", "num_videos_per_prompt", "generator", "window", "resume", "output_type"),
    *("return_dict", "callback_on_step_end", "callback_on_step_end_tensor_inputs"),
    "callback_on_block",
}


class VideoModality(DrawingModality):
    """See `Modality`."""

    metric_kinds = (ClipMetric,)
    options = ("sceptics", "again")

    def arguments(self) -> set[str]:
        """See `Modality.arguments`."""
        return set(inspect.signature(VideoPipeline.__call__).parameters) - FIXED

    def items(self, suite: Suite, path: Path | None) -> tuple[PromptItem, ...]:
        """See `Modality.items`: prompts whose facts the judge knows, or captions if none judges."""
        if not suite.metrics:
            return super().items(suite, path)
        paths = prompt_files(suite) if path is None else [path]
        return tuple(prompt for file in paths for prompt in read_clip_prompts(file))

    def open(self, model: str | None, device: str, device_map: str | None) -> Any:
        """See `Modality.open`."""
        if device_map is not None:
            raise InputError("--device-map spreads models of token ids; leave it out")
        pipe: Any = VideoPipeline.from_pretrained(model).to(device)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def methods(self, pipe: Any, call: dict[str, Any]) -> tuple[str, ...]:
        """See `Modality.methods`: those whose models the pipeline has."""

        def check(config: SpecConfig) -> None:
            pipe.check_call(config, **call)

        return runnable("video", None if pipe is None else check)

    def check(self, job: Job, todo: Plan, pipe: Any) -> None:
        """See `Modality.check`."""
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
        """See `DrawingModality.check_rows`."""
        sizes = VideoSizes(pipe.transformer, pipe.vae)
        for name in self.rows(job):
            made_by = arm(job, name)
            try:
                pipe.check_call(made_by.config, **made_by.call)
                height, width = sizes.latents(*map(made_by.call.get, ("height", "width")))
            except InputError as error:
                raise InputError(f"{name}: {error}") from error
            if job.suite.metrics and height != width:
                raise InputError(f"{name}: the judge takes square frames: set height and width")

    def first(self, job: Job) -> list[Unit]:
        """See `Modality.first`: the machine."""
        return [Unit("target", 0, 0)]

    def bench(self, job: Job, pipe: Any) -> VideoBench:
        """See `Modality.bench`."""
        if pipe.reward is None:  # of a process of its own, whose pipeline nobody checked
            _take_reward(job, pipe)
        return VideoBench(job, pipe)

    def findings(self, job: Job, todo: Plan, folder: RunFolder) -> Findings:
        """See `Modality.findings`."""
        found = super().findings(job, todo, folder)
        found.notes += routing_notes(folder.log, found.rows)
        return found

    def label(self, job: Job, rows: Mapping[str, MethodResult], log: SampleLog) -> None:
        """See `DrawingModality.label`; and who made the blocks, and what that was worth."""
        super().label(job, rows, log)
        routed_rows(rows, log)


def _rewards(job: Job) -> list[str]:
    """The rewards that the rows of a job route by."""
    asked = [config for config in job.configs.values() if judged(config)]
    return list(dict.fromkeys(config.reward for config in asked))


def _take_reward(job: Job, pipe: Any) -> None:
    """Give a pipeline the reward whose weights a job names."""
    for name in _rewards(job):
        if name in job.files:
            pipe.reward = load_reward(name, Path(job.files[name]), job.device)


class VideoBench(DrawingBench):
    """See `Bench`; a timed clip is judged too."""

    def run(self, unit: Unit) -> Outcome:
        """See `Bench.run`."""
        if unit.kind != "speed":
            return super().run(unit)
        outcome = Outcome(unit, [])
        for name, sample in self._speed.samples(unit).items():
            outcome.lines.append(speed_line(unit, name, sample))
            if self.job.suite.metrics:
                frames = sample.output.frames
                self._quality.add(outcome, name, [unit.first], frames, sample.stats)
        return outcome

    def resolution(self) -> str:
        """See `DrawingBench.resolution`: frames, then pixels down and across."""
        sizes, call = VideoSizes(self.pipe.transformer, self.pipe.vae), self.job.call
        frames = call.get("num_frames") or sizes.frames(sizes.blocks(None))
        rows, columns = sizes.latents(call.get("height"), call.get("width"))
        return f"{frames} frames of {rows * sizes.space}×{columns * sizes.space} px"

    @cached_property
    def _quality(self) -> ClipWorker:
        return ClipWorker(self.job, self.pipe)


class ClipWorker(QualityWorker):
    """Makes and judges clips."""

    @cached_property
    def sizes(self) -> VideoSizes:
        """Which frames a block has."""
        return VideoSizes(self.pipe.transformer, self.pipe.vae)

    @cached_property
    def judge(self) -> ClipJudge:
        """Of clips whose blocks are the pipeline's."""
        latents = int(self.pipe.transformer.config.num_frame_per_block)
        return ClipJudge(Timing(latents, self.sizes.time))

    def judged(self, prompts: Sequence[Any], outputs: Any) -> list[Judged]:
        """See `QualityWorker.judged`."""
        wanted = self.job.suite.metrics
        found = [self.judge(*pair) for pair in zip(prompts, outputs, strict=True)]
        return [({n: v for n, v in of.items() if n in wanted}, why) for of, why in found]

    def picture(self, output: Any, stats: SpecStats, row: int) -> Image.Image:
        """See `QualityWorker.picture`: who made which block."""
        assert isinstance(stats, VideoStats)
        return contact_sheet(self.sizes.split(output, stats.made_by[row]))

    def counted(self, stats: SpecStats, row: int) -> dict[str, Any]:
        """See `QualityWorker.counted`."""
        assert isinstance(stats, VideoStats)
        return {**super().counted(stats, row), "made_by": stats.made_by[row]}
