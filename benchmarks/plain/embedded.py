"""The embedded models as subjects: trained weights, their own sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmspec import ImagePipeline, VlmPipeline
from mmspec.models.transformers.prompt_inputs import process_questions
from mmspec.worlds.shapes import TASKS, sample_prompt
from mmspec.worlds.shapes.render import render
from mmspec.worlds.shapes.scene import sample_scene

from .llamagen import LlamaGenSubject
from .subjects import GeneratingSubject, Subject

QUESTION, TOKENS = "Describe the picture in detail.", 64


def image(device: str) -> Subject:
    """The embedded image model, on a Llama of transformers with its weights."""
    return LlamaGenSubject(ImagePipeline.from_pretrained().to(device))


def vlm(device: str) -> Subject:
    """The embedded vision-language model, asked to describe a scene."""
    pipe: Any = VlmPipeline.from_pretrained().to(device)
    return answering(pipe.model, pipe.processor)


def answering(model: Any, processor: Any) -> GeneratingSubject:
    """A vision-language model whose answers are of `TOKENS` tokens."""
    rng = np.random.default_rng(0)
    scene = sample_scene(rng, sample_prompt(rng, TASKS[0]))
    picture = Image.fromarray(render(scene))

    def inputs(rows: int) -> dict[str, torch.Tensor]:
        given = process_questions(processor, [[picture]] * rows, [QUESTION] * rows, model)
        return dict(given)

    return GeneratingSubject(model, inputs, TOKENS)


EMBEDDED: dict[str, Callable[[str], Subject]] = {"embedded-image": image, "embedded-vlm": vlm}
