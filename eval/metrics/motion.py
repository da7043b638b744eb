"""Motion correctness in the shapes world: does an object go where the caption says?

The metric is this project's: an object's centre is followed over the frames by the shapes world's
detector. An object is still if no two of its places are more than a step apart; a moving one is
correct if the straight line fitted to its track goes at least a step, and within 45° of the stated
direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...errors import InputError
from ...rewards.base import Images, to_pil
from ...worlds.shapes.detector import Detection, detect
from ...worlds.video_world.vocabulary import DIRECTIONS
from .base import Figures, VideoMetric

if TYPE_CHECKING:
    from PIL import Image

Track = npt.NDArray[np.float64]

_STEP = 0.05  # of the frame's longer side: three pixels of 64, the detector is good to one
_SEEN = 0.5  # of the frames, at least


def check_motion(track: Track, direction: str, step: float = _STEP) -> tuple[bool, str]:
    """Test a track for motion in a direction; the reason if it fails.

    Args:
        track: centres `[T, 2]`, `(x, y)` as shares of the frame's longer side, y downwards; NaN in
            frames where the object was not found.
        direction: `left`, `right`, `up`, `down` or `still`.
        step: the least displacement over the whole video, and the most that a still object strays.

    Raises:
        InputError: an unknown direction.
    """
    if direction not in DIRECTIONS:
        raise InputError(f"unknown direction {direction!r}; there are {', '.join(DIRECTIONS)}")
    times = np.flatnonzero(np.isfinite(track).all(1))
    if len(times) < max(2, _SEEN * len(track)):
        return False, f"found in {len(times)} of {len(track)} frames"
    seen = track[times]
    extent = float(np.linalg.norm(seen[:, None] - seen, axis=-1).max())
    if direction == "still":
        return extent <= step, "" if extent <= step else f"expected to be still, moved {extent:.2f}"
    centred = times - times.mean()
    slope = centred @ seen / (centred @ centred)  # a frame, of the least-squares line
    displacement = slope * (len(track) - 1)
    length = float(np.linalg.norm(displacement))
    if extent <= step or length < step:
        return False, f"expected to move {direction}, moved {min(extent, length):.2f}"
    forward = float(displacement @ DIRECTIONS[direction])
    if forward < length * np.sqrt(0.5) * (1 - 1e-9):  # exactly diagonal is within
        x, y = displacement
        return False, f"expected to move {direction}, moved ({x:+.2f}, {y:+.2f})"
    return True, ""


def judge_motion(metadata: Mapping[str, Any], frames: Images) -> tuple[bool, str]:
    """Test the motion of all objects in `include` that have one; the reasons if it fails.

    Args:
        metadata: GenEval's fields; a clause may also have `motion`, a word of `DIRECTIONS`.
        frames: the video, uint8 `[T, 3, H, W]` or PIL.

    Raises:
        InputError: no clause has a motion, or the direction is unknown.
    """
    clauses = [clause for clause in metadata["include"] if "motion" in clause]
    if not clauses:
        raise InputError(f"no clause of {metadata['prompt']!r} names a motion")
    pictures = to_pil(frames)
    detections = [detect(np.asarray(picture)) for picture in pictures]
    reasons: list[str] = []
    for clause in clauses:
        track = follow(detections, clause["class"], clause.get("color"))
        _, reason = check_motion(track / max(pictures[0].size), clause["motion"])
        if reason:
            reasons.append(f"{clause['class']}: {reason}")
    return not reasons, "; ".join(reasons)


def follow(frames: list[list[Detection]], shape: str, color: str | None = None) -> Track:
    """Centres `[T, 2]` in pixels of one object of a shape, and of a colour if given, NaN if unseen.

    The first is the most confident one; then always the one nearest to where it was last.
    """
    track = np.full((len(frames), 2), np.nan)
    last: Track | None = None
    for time, hits in enumerate(frames):
        same = [hit for hit in hits if hit.shape == shape and color in (None, hit.color)]
        if not same:
            continue
        centres = np.array([hit.box for hit in same]).reshape(-1, 2, 2).mean(1)  # [N, 2]
        first = int(np.argmax([hit.confidence for hit in same]))
        nearest = first if last is None else int(np.linalg.norm(centres - last, axis=1).argmin())
        track[time] = last = centres[nearest]
    return track


def _score(metadata: Mapping[str, Any], frames: Sequence[Image.Image]) -> Figures:
    """1 if a video's motion is right, else 0; nothing if its prompt names none."""
    if not any("motion" in clause for clause in metadata.get("include", [])):
        return {}
    right, reason = judge_motion(metadata, frames)
    return {"reason": reason, "motion": float(right)}


METRIC = VideoMetric(
    name="motion",
    summary="share of videos whose objects go where the caption says",
    bounds=(0, 1),
    video_scorer=lambda given: _score,
)
