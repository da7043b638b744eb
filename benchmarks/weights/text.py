"""Rounded weights of language models, and of models that see: laws over their own answers."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmspec.methods import SpecConfig
from mmspec.models.guided import GuidedDecoder
from mmspec.models.setting import Setting
from mmspec.models.transformers.prompt_inputs import process_questions
from mmspec.models.transformers.text_inputs import process_texts
from mmspec.worlds.shapes import TASKS, sample_prompt
from mmspec.worlds.shapes.render import render
from mmspec.worlds.shapes.scene import sample_scene

from .measure import REPEATS, ROWS
from .subject import IdsSubject, linears_of

LENGTH = 48  # tokens of a text
TEXTS = (
    "Write a short story about a fox who learns to read.",
    "Explain to a child why the sky is blue.",
    "What are the three largest cities of France? Say a sentence about each.",
    "Translate into German: The train to the coast leaves at nine in the morning.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "A shop sells pens at 3 for 2 dollars. What do 12 pens cost? Think step by step.",
    "Summarize: Bees visit flowers for nectar, and carry pollen on. Without them harvests shrink.",
    "Give five tips for somebody who moves to a new town.",
)
QUESTION = "Describe the picture in detail."


class TextSubject(IdsSubject):
    """Answers of a language model."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self.linears = linears_of(pipe.model)

    def asked(self, sample: int) -> dict[str, Any]:
        """Arguments of a call."""
        return {"prompt": TEXTS[sample % len(TEXTS)]}

    def inputs(self, sample: int) -> dict[str, Tensor]:
        """Inputs of the model."""
        return process_texts(self.pipe.tokenizer, [*self.asked(sample).values()], self._device)

    def decode(self, sample: int, weights: str | None) -> tuple[Tensor, float]:
        self.pipe.enable_speculation(SpecConfig("plain", target_weights=weights))
        started = time.perf_counter()
        out: Any = self.pipe(
            **self.asked(sample),
            max_new_tokens=LENGTH,
            temperature=1.0,
            generator=torch.Generator().manual_seed(sample),
        )
        seconds = out.stats.decode_seconds(time.perf_counter() - started)
        return torch.tensor(out.tokens), seconds / len(out.tokens[0])

    def laws(self, sample: int, tokens: Tensor, weights: str | None) -> Tensor:
        decoder, guided = self._guided(sample, tokens.shape[1], weights)
        with decoder.repacked():
            guided.start(1)
            inputs = torch.cat([tokens[:, :1], tokens[:, :-1]], dim=1)
            return guided.extend(inputs, [-1])[0]

    def call(self, rows: int, weights: str | None) -> float:
        decoder, guided = self._guided(0, LENGTH, weights)
        with decoder.repacked():
            return guided.seconds_per_call(rows, repeats=REPEATS)

    @property
    def _device(self) -> torch.device:
        device: torch.device = self.pipe.model.device
        return device

    def _guided(self, sample: int, limit: int, weights: str | None) -> tuple[Any, GuidedDecoder]:
        config = SpecConfig("plain", target_weights=weights)
        decoder = self.pipe.prepared(config.resolve("vlm")).target
        given = self.inputs(sample)
        ids, mask = given.pop("input_ids"), given.pop("attention_mask").bool()
        prompt = decoder.prompt(ids, mask, limit, **given)
        decoder.place(prompt)
        prefix, warp = (prompt.embedded, prompt.mask), partial(torch.softmax, dim=-1)
        return decoder, GuidedDecoder(decoder, Setting(*prefix, None, warp, limit, 0, max(ROWS)))


class VlmSubject(TextSubject):
    """Descriptions of drawn scenes."""

    def asked(self, sample: int) -> dict[str, Any]:
        rng = np.random.default_rng(sample)
        scene = sample_scene(rng, sample_prompt(rng, TASKS[sample % len(TASKS)]))
        return {"prompt": QUESTION, "image": Image.fromarray(render(scene))}

    def inputs(self, sample: int) -> dict[str, Tensor]:
        picture = self.asked(sample)["image"]
        pipe = self.pipe
        return dict(process_questions(pipe.processor, [[picture]], [QUESTION], pipe.model))
