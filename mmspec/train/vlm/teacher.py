"""A frozen vision-language model as the teacher of draft heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...models.guided import GuidedDecoder
from ...models.transformers.prompt_inputs import process_questions
from ...models.transformers.vlm import VisualPrompt
from ..heads.head_batch import HeadBatch
from ..heads.teacher import Teacher
from .prompts import Questions


class VlmTeacher(Teacher):
    """Answers questions about pictures, half of them greedily and half at temperature 1.

    Args:
        model, limit, reads: see `Teacher`; a vision-language model.
        processor: its own.
    """

    def __init__(
        self, model: PreTrainedModel, processor: Any, limit: int, reads: tuple[int, ...] = ()
    ) -> None:
        super().__init__(model, limit, reads)
        self.processor = processor

    def prompt(
        self,
        questions: Questions,
        warp: Callable[[Tensor], Tensor],
        scratch: int = 1,
        seen: bool = True,
    ) -> tuple[GuidedDecoder, VisualPrompt]:
        """The model in front of its answers, see `placed`; `seen`: it is shown the pictures."""
        prompt = self.encoded(questions, seen)
        return self.placed(prompt, warp, scratch), prompt

    def encoded(self, questions: Questions, seen: bool = True) -> VisualPrompt:
        """The prompts of questions."""
        pictures = [[picture] if seen else [] for picture in questions.pictures]
        inputs: dict[str, Any] = process_questions(
            self.processor, pictures, questions.texts, self.model
        )
        ids, mask = inputs.pop("input_ids"), inputs.pop("attention_mask").bool()
        prompt = self.decoder.prompt(ids, mask, self.limit, **inputs)
        assert isinstance(prompt, VisualPrompt)
        return prompt

    def examples(
        self, questions: Questions, seeds: list[int], size: int, seen: bool = True
    ) -> list[HeadBatch]:
        """Answers to questions, and hidden states at them; arguments see `lessons`."""
        with torch.inference_mode():
            prompt = self.encoded(questions, seen)
        return self.lessons(prompt, prompt.images, seeds, size)
