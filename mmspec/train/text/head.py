"""Recipe of draft heads over a frozen language model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...engine.warp import Warp
from ...models.guided import GuidedDecoder
from ...models.heads.columns import Images
from ...models.heads.formats.new import spread
from ...models.heads.published.head import PublishedHead
from ...models.transformers.text_folder import load_text
from ..feature_cache import cache_folder, read_cached, write_cached
from ..heads import recipe
from ..heads.head_batch import HeadBatch
from ..heads.recipe import HeadRecipe, dtype_of
from ..trainer import TrainConfig
from .prompts import FilePrompts, OwnPrompts
from .teacher import TextTeacher

COUNTED = 32  # batches of answers in which the tokens of a smaller vocabulary are counted
KEPT = "features", "states", "mask", "answer", "tokens"  # of a batch, on disk


class TextHeadRecipe(HeadRecipe):
    """Trains `heads/METHOD` on a language model's own answers.

    Answers and the hidden states at them are kept in `training/lessons`: to write them takes longer
    than to learn from them, and heads of other methods learn from the same.

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
        self.config, self.pipeline = config, pipeline
        parts = load_text(pipeline, dtype_of(config))
        model = parts["model"].to(config.device)
        # most heads that join hidden states join these; for the others they lie ready
        layers = model.config.get_text_config().num_hidden_layers
        shared = tuple(sorted({*spread(3, layers)}))
        self.teacher = TextTeacher(model, parts["tokenizer"], max_new_tokens, shared)
        made = OwnPrompts(self.teacher) if data is None else FilePrompts(data, self.teacher)
        self.prompts: OwnPrompts | FilePrompts = made
        self.home = cache_folder(pipeline, "lessons", ["."])
        how = init, settings, rate, objective, reference, self.counts
        super().__init__(config, pipeline, self.teacher, method, *how)
        self.teacher.reads = self.teacher.reads or shared

    @property
    def asked(self) -> str:
        return self.prompts.described

    def counts(self) -> Tensor:
        """Counts `[V]` of the tokens that the model says in its first `COUNTED` batches."""
        size = self.teacher.decoder.vocab_size
        counts = torch.zeros(size, dtype=torch.long)
        for first in range(0, COUNTED, recipe.TOGETHER):
            for batch in self.lessons(first, True):
                assert batch.tokens is not None
                counts += batch.tokens[batch.mask].bincount(minlength=size)
        return counts

    def lessons(self, number: int, seen: bool) -> list[HeadBatch]:
        file = self.home / self._settings() / f"{number:06}.pt"
        content = read_cached(file)
        if content is None:
            content = [
                {name: _small(getattr(batch, name)) for name in KEPT}
                for batch in self._written(number)
            ]
            file.parent.mkdir(parents=True, exist_ok=True)
            write_cached(file, content)
        return [self._read(**parts) for parts in content]

    def _settings(self) -> str:
        """Name of the folder of lessons that are made as these are."""
        teacher, config = self.teacher, self.config
        made = teacher.reads, teacher.limit, teacher.temperatures, self.prompts.key
        sizes = recipe.TOGETHER, config.batch_size, config.seed
        return hashlib.sha256(repr((made, sizes)).encode()).hexdigest()[:12]

    def _written(self, number: int) -> list[HeadBatch]:
        """Lessons that are made anew."""
        size = self.config.batch_size
        rng = np.random.default_rng([self.config.seed, number])
        prompts = self.prompts.draw(rng, recipe.TOGETHER * size)
        seeds = rng.integers(2**31, size=len(prompts)).tolist()
        with torch.inference_mode():
            encoded = self.teacher.encoded(prompts)
        return self.teacher.lessons(encoded, [[]] * len(prompts), seeds, size)

    def _read(self, **parts: Tensor) -> HeadBatch:
        """A batch as it lies on disk; heads that join no hidden states read the last ones."""
        decoder, features = self.teacher.decoder, parts["features"]
        model: PublishedHead | None = getattr(self, "model", None)
        joins = model is None or model.reads
        tokens = parts["tokens"].long()
        embedded = decoder.embed(tokens.to(self.teacher.model.device)).cpu()
        return HeadBatch(
            embedded,
            features,
            parts["states"] if joins else features,
            parts["mask"],
            parts["answer"],
            None,
            decoder.logits,
            decoder.embed,
            tokens,
            self.teacher.model.get_output_embeddings(),
        )

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
        places, drafted = self.teacher.on_device(batch).ahead(1)
        law = batch.law_at(places[drafted], ids.to(places.device))
        return float(law.sum(-1).mean())

    def held_out(self, warp: Warp, scratch: int) -> tuple[GuidedDecoder, Images | None, int]:
        prompts = self.prompts.held_out()
        return self.teacher.placed(self.teacher.encoded(prompts), warp, scratch), None, len(prompts)


def _small(x: Tensor) -> Tensor:
    """As it is kept: halves, and ids in four bytes."""
    if x.is_floating_point():
        return x.half()
    return x.int() if x.dtype == torch.long else x
