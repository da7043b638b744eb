"""What the target of a pipeline is given with one question."""

from __future__ import annotations

from PIL import Image
from torch import Tensor

from ...models.asked import asked
from ...pipelines.vlm import VlmPipeline


def inputs_of(pipe: VlmPipeline, picture: Image.Image, question: str) -> dict[str, Tensor]:
    """What the pipeline's processor makes of a picture and a question, on the target's device."""
    return asked(pipe.processor, [[picture]], [question], pipe.model)
