"""Pictures of the shapes world, each with many questions in one row, as tensors.

The questions of a row share the picture's tokens and see nothing of each other: each stands right
behind the picture, as if it were the only one. So a picture is encoded once for all that it can
teach, and what is learned is the law of single questions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..worlds.shapes.charts import FORMS
from ..worlds.shapes.exchanges import (
    LONG_KINDS,
    Exchange,
    Picture,
    draw,
    exchange_about,
    sample_picture,
)
from ..worlds.shapes.questions import SCENE_KINDS
from ..worlds.shapes.vocabulary import Split

CHARTS = 0.3  # of the pictures
SHORT = 6  # questions of a picture that take a word or two
# The few tokens of short answers would drown in those of descriptions.
SHORT_WEIGHT = 3.0


@dataclass
class Lessons:
    """Rows of a picture and the questions about it.

    Attributes:
        pictures: uint8 `[B, S, S, 3]`.
        ids: tokens `[B, L]`: `<|user|>`, the picture's, then question and answer in turn.
        segments: the number of the question that a token belongs to, 0 for what all questions
            share, -1 for padding `[B, L]`.
        positions: `[B, L]`, those of every question as if it were alone.
        weights: of the losses of tokens, 0 for what is not an answer `[B, L]`.
    """

    pictures: Tensor
    ids: Tensor
    segments: Tensor
    positions: Tensor
    weights: Tensor

    def mask(self) -> Tensor:
        """What a token may look at `[B, 1, L, L]`: what is shared, and its own question."""
        before = torch.ones(self.ids.shape[1:] * 2, dtype=torch.bool, device=self.ids.device).tril()
        mine, theirs = self.segments[:, :, None], self.segments[:, None, :]
        seen = before & ((theirs == 0) | (theirs == mine))
        return seen[:, None]

    def to(self, device: str) -> Lessons:
        """The same on a device."""
        return Lessons(**{name: value.to(device) for name, value in vars(self).items()})


def sample_lesson(
    rng: np.random.Generator, split: Split = "train"
) -> tuple[Picture, list[Exchange]]:
    """A picture with a long answer and several short ones."""
    if rng.random() < CHARTS:
        kinds = [f"{FORMS[int(rng.integers(len(FORMS)))]}_chart"] * SHORT + ["chart_description"]
    else:
        drawn = rng.integers(len(SCENE_KINDS), size=SHORT)
        kinds = [list(SCENE_KINDS)[int(i)] for i in drawn] + ["description"]
    # some scenes of one object, of which there is little to say at length
    lone = rng.random() < 0.1 and kinds[-1] == "description"
    picture = sample_picture(
        rng, kinds[0] if lone or kinds[-1] != "description" else kinds[-1], split
    )
    exchanges = [exchange_about(rng, picture, kind, split) for kind in kinds]
    return picture, [exchange for exchange in exchanges if exchange]


def draw_lessons(
    words: Any, size: int, side: int, places: int, rng: np.random.Generator, step: int
) -> Lessons:
    """The rows of a training step.

    Args:
        words: the tokenizer.
        size: rows.
        side: of the pictures, in pixels.
        places: tokens of a picture.
    """
    drawn = [sample_lesson(rng) for _ in range(size)]
    return pack(words, [(draw(picture, side), said) for picture, said in drawn], places)


def pack(words: Any, rows: list[tuple[np.ndarray, list[Exchange]]], places: int) -> Lessons:
    """Rows of a picture each `[S, S, 3]` and the exchanges about it."""
    packed = [_row(words, exchanges, places) for _, exchanges in rows]
    length = max(len(ids) for ids, *_ in packed)
    ids, segments, positions, weights = (
        torch.tensor([column + [fill] * (length - len(column)) for column in columns])
        for columns, fill in zip(
            zip(*packed, strict=True), (words.pad_token_id, -1, 0, 0.0), strict=True
        )
    )
    pictures = torch.from_numpy(np.stack([picture for picture, _ in rows]))
    return Lessons(pictures, ids, segments, positions, weights)


def _row(
    words: Any, exchanges: list[Exchange], places: int
) -> tuple[list[int], list[int], list[int], list[float]]:
    ids = [words.user_token_id] + [words.image_token_id] * places
    shared = len(ids)
    segments, positions, weights = [0] * shared, list(range(shared)), [0.0] * shared
    for number, exchange in enumerate(exchanges, 1):
        question = [*words(exchange.question).input_ids, words.assistant_token_id]
        answer = [*words(exchange.answer).input_ids, words.eos_token_id]
        more = len(question) + len(answer)
        ids += question + answer
        segments += [number] * more
        positions += range(shared, shared + more)
        weight = 1.0 if exchange.kind in LONG_KINDS else SHORT_WEIGHT
        weights += [0.0] * len(question) + [weight] * len(answer)
    return ids, segments, positions, weights
