"""Inputs of a pipeline's target for a question, and a check that they fit."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image
from torch import Tensor

from ....errors import InputError
from ....models.transformers.prompt_inputs import process_questions
from ....pipelines.vlm.pipeline import VlmPipeline
from ...data.picture_questions import PictureQuestion

SIDE = 128  # pixels of a drawn picture, for models that take any
LEAST = 64  # of a smaller one, charts can't be read


def inputs_of(pipe: VlmPipeline, picture: Image.Image, question: str) -> dict[str, Tensor]:
    """Process a picture and a question, on the target's device."""
    return process_questions(pipe.processor, [[picture]], [question], pipe.model)


def picture_side(pipe: VlmPipeline) -> int:
    """Pixels of drawn pictures: those that the target's vision tower is made for."""
    size = getattr(pipe.model.config.vision_config, "image_size", None) or SIDE
    return max(LEAST, int(min(size)) if isinstance(size, list | tuple) else int(size))


def check_questions(pipe: VlmPipeline, items: Sequence[PictureQuestion], drafts: bool) -> None:
    """Say early which question would end a run: what is no picture, or what a processor refuses.

    A processor is shown a blank picture of every size that there is.

    Args:
        drafts: whether the drafter is asked too.

    Raises:
        InputError: there is such a question; its number and its picture are named.
    """
    own = pipe.drafter_processor if drafts else None
    processors = [pipe.processor, *([] if own is None else [own])]
    seen, side = set(), picture_side(pipe)
    for number, item in enumerate(items, 1):
        try:
            sides = item.sides(side)
            if sides not in seen:
                blank = Image.new("RGB", sides)
                for processor in processors:
                    process_questions(processor, [[blank]], [item.prompt], pipe.model)
            seen.add(sides)
        except InputError as error:
            about = f", about {item.path}" if item.path else ""
            raise InputError(f"question {number}{about}: {error}") from error
