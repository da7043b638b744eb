"""Lessons of a language model: its answers and the hidden states at them, kept on disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...models.heads.formats.new import spread
from ...models.transformers.text_folder import load_text
from ..feature_cache import cache_folder, read_cached, write_cached
from ..heads import pool
from ..heads.head_batch import HeadBatch
from ..heads.recipe import dtype_of
from ..trainer import TrainConfig
from .prompts import FilePrompts, OwnPrompts
from .teacher import TextTeacher

KEPT = "features", "states", "mask", "answer", "tokens"  # of a batch, on disk


class TextLessons:
    """Answers of the language model of a folder, made once for all that learn from them.

    To write them takes longer than to learn from them, and drafters of all kinds learn from the
    same. They lie in `training/lessons` of the folder.

    Args:
        config, pipeline: of the run; the folder holds the model's tokenizer, too.
        data: file of prompts, see `FilePrompts`; None: the model writes them itself.
        max_new_tokens: of an answer.

    Attributes:
        teacher: the model.
        prompts: that it answers.
        joins: whether what learns joins hidden states of several layers; if not it is given the
            last ones in their place.

    Raises:
        InputError: the folder holds no such model, or a line of the data is wrong.
    """

    joins = True

    def __init__(
        self, config: TrainConfig, pipeline: Path, data: Path | None, max_new_tokens: int
    ) -> None:
        self.config = config
        parts = load_text(pipeline, dtype_of(config))
        model = parts["model"].to(config.device)
        self.teacher = TextTeacher(model, parts["tokenizer"], max_new_tokens)
        # most heads that join hidden states join these; for the others they lie ready
        layers = model.config.get_text_config().num_hidden_layers
        known = hasattr(self.teacher.decoder.body, "layers")
        self.shared = tuple(sorted({*spread(3, layers)})) if known else ()
        self.teacher.reads = self.shared
        made = OwnPrompts(self.teacher) if data is None else FilePrompts(data, self.teacher)
        self.prompts: OwnPrompts | FilePrompts = made
        self.home = cache_folder(pipeline, "lessons", ["."])

    def batches(self, number: int) -> list[HeadBatch]:
        """`pool.TOGETHER` batches from number `number` on."""
        file = self.home / self._settings() / f"{number:06}.pt"
        content = read_cached(file)
        if content is None:
            content = [
                {name: small(getattr(batch, name)) for name in KEPT}
                for batch in self._written(number)
            ]
            file.parent.mkdir(parents=True, exist_ok=True)
            write_cached(file, content)
        return [self._read(**parts) for parts in content]

    def _settings(self) -> str:
        """Name of the folder of lessons that are made as these are."""
        teacher, config = self.teacher, self.config
        made = teacher.reads, teacher.limit, teacher.temperatures, self.prompts.key
        sizes = pool.TOGETHER, config.batch_size, config.seed
        return hashlib.sha256(repr((made, sizes)).encode()).hexdigest()[:12]

    def _written(self, number: int) -> list[HeadBatch]:
        """Lessons that are made anew."""
        size = self.config.batch_size
        rng = np.random.default_rng([self.config.seed, number])
        prompts = self.prompts.draw(rng, pool.TOGETHER * size)
        seeds = rng.integers(2**31, size=len(prompts)).tolist()
        with torch.inference_mode():
            encoded = self.teacher.encoded(prompts)
        return self.teacher.lessons(encoded, [[]] * len(prompts), seeds, size)

    def _read(self, **parts: Tensor) -> HeadBatch:
        """A batch as it lies on disk."""
        decoder, features = self.teacher.decoder, parts["features"]
        tokens = parts["tokens"].long()
        embedded = decoder.embed(tokens.to(self.teacher.model.device)).cpu()
        return HeadBatch(
            embedded,
            features,
            parts["states"] if self.joins else features,
            parts["mask"],
            parts["answer"],
            None,
            decoder.logits,
            decoder.embed,
            tokens,
            self.teacher.model.get_output_embeddings(),
            last=self.teacher.last,
        )


def small(x: Tensor) -> Tensor:
    """Keep halves of numbers, or bfloat16 where these have no such ones, and ids in four bytes."""
    if x.is_floating_point():
        half = x.half()
        return half if bool(torch.isfinite(half).all()) else x.to(torch.bfloat16)
    return x.int() if x.dtype == torch.long else x
