"""The clip world's judge as metrics of a clip: nothing that routes blocks has a say in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image

from ...picture import open_picture
from ...worlds.video_world.actor import View
from ...worlds.video_world.judge import judge_views
from ...worlds.video_world.prompts import ClipPrompt
from ...worlds.video_world.vocabulary import PASSES, TIMING, Timing
from ..metrics.base import RunMetric


class ClipMetric(RunMetric):
    """A score that `ClipJudge` gives a clip."""


CORRECTNESS = ClipMetric(
    name="correctness",
    summary="mean over a clip's blocks of attributes × motion × order",
    told_by_task=True,
)
ATTRIBUTES = ClipMetric(name="attributes", summary="share of frames with the right shapes, colours")
MOTION = ClipMetric(name="motion", summary="share of objects that move as they should")
ORDER = ClipMetric(name="order", summary="whether objects that pass do so the stated way")


@dataclass(frozen=True)
class ClipJudge:
    """Scores clips by a detector, frame by frame, see `mmspec.worlds.video_world.judge`.

    `order` is of prompts with two objects that pass, over the frames in which they do; 1 if they
    never do.

    Attributes:
        timing: which frames a block is.
    """

    timing: Timing = TIMING

    def __call__(
        self, prompt: ClipPrompt, frames: Sequence[Image.Image]
    ) -> tuple[dict[str, float], str]:
        """The metrics of a clip of square frames, and what they say in words."""
        views = [_view(open_picture(frame).tobytes(), frame.width) for frame in frames]
        found = judge_views(views, prompt, timing=self.timing)
        scores = {
            "correctness": found.score,
            "attributes": float(found.attributes.mean()),
            "motion": float(found.motion.mean()),
        }
        if prompt.tag in PASSES:
            passing = found.order[np.isfinite(found.order)]
            scores["order"] = float(passing.mean()) if len(passing) else 1.0
        parts = [f"{name} {value:.2f}" for name, value in scores.items() if name != "correctness"]
        return scores, ", ".join(parts)


@lru_cache(maxsize=4096)
def _view(pixels: bytes, side: int) -> View:
    """Objects seen in a square frame; clips of one prompt share frames before they part."""
    return View.of(np.frombuffer(pixels, np.uint8).reshape(side, side, 3))
