"""What a modality's reports call things, and what they alone explain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..schema import Report


@dataclass(frozen=True)
class Wording:
    """The words of a modality.

    Attributes:
        outputs: what its calls make.
        units: what speed is counted in: what an output is made of.
        emitted: what a call of the target emits.
        whole_calls: whole calls are timed, not a loop in them.
        sheets: outputs are shown as sheets of frames, framed by who made them.
        meanings: of terms, in place of the usual meaning.
        definitions: of terms that all its reports have.
    """

    outputs: str = "outputs"
    units: str = "tokens"
    emitted: str = "tokens"
    whole_calls: bool = False
    sheets: bool = False
    meanings: Mapping[str, str] = field(default_factory=dict)
    definitions: Mapping[str, str] = field(default_factory=dict)


_OTHERS = Wording()
_OF: dict[str, Wording] = {
    "image": Wording(outputs="images"),
    "vlm": Wording(
        outputs="answers",
        definitions={
            "Truthfulness and coverage": (
                "Of a description: the share of its claims that hold in the scene, and the share "
                "of the scene's objects that it introduces with their colour."
            ),
        },
    ),
    "continuous": Wording(
        outputs="images",
        emitted="steps",
        meanings={
            "NFE": (
                "Calls of the target's diffusion head that generate a token, one after the other; "
                "a picture's are counted where it is timed."
            ),
        },
    ),
    "video": Wording(
        outputs="clips",
        units="blocks",
        emitted="blocks",
        whole_calls=True,
        sheets=True,
        meanings={
            "Speed-up": (
                "Plain's seconds for all clips together over the method's: the prompt, drafts, "
                "frames decoded, the reward, blocks made again, all of it; the same prompts and "
                "seeds in one process, one clip at a time, methods in turn. Judging is left out: "
                "it is no part of making a clip."
            ),
            "NFE": (
                "Calls of the target that make a clip: one a denoising step of a block that it "
                "makes, and one where drafted blocks wait to be written to its cache."
            ),
            "Tokens per call": "Blocks of the clip per call of the target.",
        },
        definitions={
            "Correctness, attributes, motion, order": (
                "By a detector that looks at the frames and shares nothing with the reward. "
                "Attributes: of each frame, the right shapes and colours, none too many. Motion: "
                "of each frame, the share of objects that are there and have moved as they should. "
                "Order: of clips in which two objects pass, whether they pass the stated way. "
                "Correctness: the mean over blocks of the product of the three."
            ),
            "Of plain's": (
                "A mean over plain's, with the interval of the ratio when prompts are resampled, "
                "both methods' clips together."
            ),
            "The parts of a clip's time": (
                "Draft: denoising by the drafter. Decode: latents to frames, of drafts that fall "
                "too. Reward: judging drafted frames. Regenerate: denoising by the target. Commit: "
                "writing blocks to the caches by a call of its own, where many wait; else the next "
                "call of the model writes them along the way. Rest: turning frames into pictures, "
                "and the loop itself."
            ),
        },
    ),
}


def wording(report: Report) -> Wording:
    """The words of a report's modality; of an unknown one the usual words."""
    return _OF.get(report.pipeline, _OTHERS)
