"""Plain text of one's own, in pieces of some length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import InputError
from .lines import read_texts

LENGTH = 256  # tokens of a piece


class Corpus:
    """A file of lines `{"text": text}`: documents one after the other, an end behind each.

    Args:
        path: the file.
        tokenizer: the model's.

    Attributes:
        ids: tokens of all of it.
        described: in a few words, for the card.

    Raises:
        InputError: a line is no such object, or there is no text.
    """

    def __init__(self, path: Path, tokenizer: Any) -> None:
        end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        ids: list[int] = []
        for text in read_texts(path, "text"):
            ids += tokenizer(text, add_special_tokens=False)["input_ids"] + end
        if len(ids) < 2:
            raise InputError(f"{path} holds no text to learn from")
        self.ids = torch.tensor(ids)
        self.described = f"{len(ids):,} tokens of {path.name}, drawn in pieces of {LENGTH}"

    def draw(self, size: int, rng: np.random.Generator, step: int) -> tuple[Tensor, Tensor]:
        """Pieces `[size, S]` from anywhere, and their mask: all of it is real."""
        length = min(LENGTH, len(self.ids))
        first = torch.from_numpy(rng.integers(len(self.ids) - length + 1, size=(size, 1)))
        tokens = self.ids[first + torch.arange(length)]
        return tokens, torch.ones_like(tokens, dtype=torch.bool)
