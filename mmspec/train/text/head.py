"""Recipe of draft heads over a frozen language model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...engine.warp import Warp
from ...models.guided import GuidedDecoder
from ...models.heads.columns import Images
from ..heads import pool
from ..heads.head_batch import HeadBatch
from ..heads.recipe import HeadRecipe
from ..trainer import TrainConfig
from .lessons import TextLessons
from .teacher import TextTeacher

COUNTED = 32  # batches of answers in which the tokens of a smaller vocabulary are counted


class TextHeadRecipe(HeadRecipe):
    """Trains `heads/METHOD` on a language model's own answers, see `TextLessons`.

    Args:
        config, pipeline, method, init, settings, rate, objective, reference: see `HeadRecipe`; the
            folder holds the model's tokenizer, too.
        data: file of prompts, see `FilePrompts`; None: the model writes them itself.
        max_new_tokens: of an answer.

    Raises:
        InputError: see `HeadRecipe`; or the folder holds no such model, or a line of the data is
            wrong.
    """

    teacher: TextTeacher

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        method: str,
        init: str | None = None,
        data: Path | None = None,
        settings: Mapping[str, str] | None = None,
        rate: float | None = None,
        max_new_tokens: int = 128,
        objective: str | None = None,
        reference: str | None = None,
    ) -> None:
        lessons = self.source = TextLessons(config, pipeline, data, max_new_tokens)
        self.teacher, self.prompts = lessons.teacher, lessons.prompts
        how = init, settings, rate, objective, reference, self.counts
        super().__init__(config, pipeline, self.teacher, method, *how)
        self.teacher.reads = self.teacher.reads or lessons.shared
        lessons.joins = bool(self.model.reads)
        self.ready()

    @property
    def asked(self) -> str:
        return self.prompts.described

    def counts(self) -> Tensor:
        """Counts `[V]` of the tokens of the model's answers in its first `COUNTED` batches."""
        size = self.teacher.decoder.vocab_size
        counts = torch.zeros(size, dtype=torch.long)
        for first in range(0, COUNTED, pool.TOGETHER):
            for batch in self.lessons(first, True):
                assert batch.tokens is not None
                counts += batch.tokens[batch.answer].bincount(minlength=size)
        return counts

    def lessons(self, number: int, seen: bool) -> list[HeadBatch]:
        return self.source.batches(number)

    def evaluate(self, model: Any) -> dict[str, float]:
        figures = super().evaluate(model)
        if self.model.vocabulary is not None:
            figures["held_out_vocabulary_mass"] = self.vocabulary_mass()
        return figures

    @torch.no_grad()
    def vocabulary_mass(self) -> float:
        """Mean probability `p(K)` of the tokens that the head drafts, in held-out answers.

        No more of the tokens that the model draws can have been drafted.
        """
        assert self.model.vocabulary is not None
        prompts, ids = self.prompts.held_out(), self.model.vocabulary.ids
        with torch.inference_mode():
            encoded = self.teacher.encoded(prompts)
        count = len(prompts)
        (batch,) = self.teacher.lessons(encoded, [[]] * count, [*range(count)], count)
        batch = self.teacher.on_device(batch)
        places, drafted = batch.ahead(1)
        law = batch.law_at(places[drafted], ids.to(places.device))
        return float(law.sum(-1).mean())

    def held_out(self, warp: Warp, scratch: int) -> tuple[GuidedDecoder, Images | None, int]:
        prompts = self.prompts.held_out()
        return self.teacher.placed(self.teacher.encoded(prompts), warp, scratch), None, len(prompts)
