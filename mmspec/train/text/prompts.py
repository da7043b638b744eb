"""Prompts for a language model, from whose answers draft heads learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ...errors import InputError
from ...models.transformers.prompted import most_positions
from ...models.transformers.text_inputs import process_texts
from .lines import read_texts
from .teacher import ASKED, LIKELY, TextTeacher

HELD_OUT = 16  # prompts of an evaluation at most
_HELD_OUT_SEED = 2**31  # above those of training


class OwnPrompts:
    """Prompts that the model writes itself, see `TextTeacher.invented`.

    Attributes:
        described: where they come from in a few words, for the card.
        key: prompts of another key are others.
    """

    described = "prompts that the model wrote itself, in the place of a user"

    def __init__(self, teacher: TextTeacher) -> None:
        self.teacher = teacher

    @property
    def key(self) -> str:
        """Mark of all that decides the prompts beside the model's weights."""
        return repr((self.teacher.turn(), ASKED, LIKELY))

    def draw(self, rng: np.random.Generator, size: int) -> list[list[int]]:
        """Token ids of `size` prompts to learn from."""
        return self.teacher.invented(rng.integers(_HELD_OUT_SEED, size=size).tolist())

    def held_out(self) -> list[list[int]]:
        """A few that training never asks, always the same."""
        return self.teacher.invented([_HELD_OUT_SEED + n for n in range(HELD_OUT)])


class FilePrompts:
    """Prompts of one's own: a file of lines `{"prompt": text}`.

    One line in ten is held out, up to `HELD_OUT` of them, spread over the file.

    Args:
        path: the file.
        teacher: has the model's tokenizer, whose chat template makes each a user's turn.

    Raises:
        InputError: a line is no such object, there are fewer than two, or one is too long.
    """

    def __init__(self, path: Path, teacher: TextTeacher) -> None:
        texts = read_texts(path, "prompt")
        if len(texts) < 2:
            raise InputError(f"{path} has {len(texts)} prompts; one to learn and one to hold out")
        count = max(1, min(HELD_OUT, len(texts) // 10))
        held_out = {n * len(texts) // count for n in range(count)}
        self._held_out = [text for n, text in enumerate(texts) if n in held_out]
        self._texts = [text for n, text in enumerate(texts) if n not in held_out]
        self._teacher = teacher
        # one by one: padded to the longest they would take many times their size
        rows = [self._ids([text])[0] for text in texts]
        self._check_lengths(path, texts, list(map(len, rows)))
        self.key = repr(rows)
        self.described = f"{len(self._texts):,} prompts of {path.name}"

    def draw(self, rng: np.random.Generator, size: int) -> list[list[int]]:
        return self._ids([self._texts[n] for n in rng.integers(len(self._texts), size=size)])

    def held_out(self) -> list[list[int]]:
        return self._ids(self._held_out)

    def _check_lengths(self, path: Path, texts: list[str], lengths: list[int]) -> None:
        most, limit = most_positions(self._teacher.decoder.config), self._teacher.limit
        for number, (length, text) in enumerate(zip(lengths, texts, strict=True), 1):
            if most is not None and length + limit > most:
                raise InputError(
                    f"{path}: prompt {number} ({text[:40]!r} …) has {length} tokens, and with an "
                    f"answer of {limit} it is too long for this model, which has {most} positions; "
                    "shorten it, leave it out, or lower --max-new-tokens"
                )

    def _ids(self, texts: list[str]) -> list[list[int]]:
        inputs = process_texts(self._teacher.tokenizer, texts, torch.device("cpu"))
        rows = zip(inputs["input_ids"], inputs["attention_mask"].bool(), strict=True)
        return [ids[real].tolist() for ids, real in rows]
