"""Labels of the patches of a clip's frames: what is seen there, and where it moves."""

from __future__ import annotations

import numpy as np

from ..shapes import patches as of_scenes
from ..shapes.scene import Scene
from .clip import Clip, Mover
from .vocabulary import DIRECTIONS

# of a patch: what the object there looks like and where it moves; 0: none; and the number of names
LABELS = {
    **{name: of_scenes.LABELS[name] for name in ("shape", "color")},
    "motion": len(DIRECTIONS) + 1,
}
_STEPS = list(DIRECTIONS.values())


def frame_labels(clip: Clip, frame: int, patches: int, patch: int) -> np.ndarray:
    """The `LABELS` `[patches, patches, 3]`, int64, of the object that covers most of each patch.

    Args:
        frame: counted from 0.
        patches: a side, in patches.
        patch: side of one in pixels.
    """
    seen = [(item, mover) for mover in clip.movers for item in mover.drawn(frame)]
    scene = Scene(tuple(item for item, _ in seen), clip.background)
    motions = np.array([0, *(_motion(mover, frame) for _, mover in seen)])
    looks = of_scenes.described(scene)[:, : len(LABELS) - 1]
    known = np.concatenate([looks, motions[:, None]], -1)
    return known[of_scenes.patch_parts(scene, patches, patch)]


def _motion(mover: Mover, frame: int) -> int:
    """The label of a direction: that of the step to the next frame, none as it turns midway."""
    here, then = mover.at(frame), mover.at(frame + 1)
    ways = []
    for axis in "xy":
        step = getattr(then, axis) - getattr(here, axis)
        step -= np.round(step)  # what leaves at one edge comes back at the opposite one
        ways.append(int(np.sign(step)))
    return 1 + _STEPS.index((ways[0], ways[1]))
