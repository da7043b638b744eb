"""Pictures of the shapes world, each with many questions in one row, as tensors.

The questions of a row share the picture's tokens and see nothing of each other: each stands right
behind the picture, as if it were the only one. So a picture is encoded once for all that it can
teach, and what is learned is the law of single questions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...worlds.shapes.charts import FORMS, Chart
from ...worlds.shapes.exchanges import (
    LONG_KINDS,
    Exchange,
    Picture,
    draw,
    exchange_about,
    sample_picture,
)
from ...worlds.shapes.patches import LABELS, PLACES, patch_labels, place_labels
from ...worlds.shapes.questions import SCENE_KINDS
from ...worlds.shapes.vocabulary import Split
from ...worlds.shapes.witness import mistaken
from .turns import Turns

CHARTS = 0.3  # of the pictures
SHORT = 6  # questions of a picture that take a word or two
# What is hard to read off comes more often.
SCENES = (*SCENE_KINDS, "position", "position")
READ = (*FORMS, "line")
HEARD = 0.2  # of the steps: questions come with what others, who may be wrong, say of the picture
MISTAKEN = (0.0, 0.1, 0.2, 0.4)  # how much of what one of them says is wrong
# What asks an expert for his reasons, and the model for its verdict on them.
VERDICT = {"reason": "Describe the picture in detail.", "ask": "{paths}\n{question}"}
# The few tokens of short answers would drown in those of descriptions.
SHORT_WEIGHT = 3.0
MULTIPLE = 32  # tokens of a row are a multiple of it
NOTHING = 0.2  # weight of what a patch without a label shows, `PatchReader`


@dataclass
class QuestionBatch:
    """Rows of a picture and the questions about it.

    Attributes:
        pictures: uint8 `[B, S, S, 3]`.
        ids: tokens `[B, L]`: a turn's start, the picture's, then question and answer in turn.
        segments: the number of the question that a token belongs to, 0 for what all questions
            share, -1 for padding `[B, L]`.
        positions: `[B, L]`, those of every question as if it were alone.
        weights: of the losses of tokens, 0 for what is not an answer `[B, L]`.
        labels: `all_labels` of the pictures `[B, P, 5]`.
    """

    pictures: Tensor
    ids: Tensor
    segments: Tensor
    positions: Tensor
    weights: Tensor
    labels: Tensor

    def mask(self) -> Tensor:
        """Attention mask `[B, 1, L, L]`: a token reads what is shared, and its own question."""
        before = torch.ones(self.ids.shape[1:] * 2, dtype=torch.bool, device=self.ids.device).tril()
        mine, theirs = self.segments[:, :, None], self.segments[:, None, :]
        seen = before & ((theirs == 0) | (theirs == mine))
        return seen[:, None]

    def to(self, device: str) -> QuestionBatch:
        """The batch on a device."""
        return QuestionBatch(**{name: value.to(device) for name, value in vars(self).items()})


def sample_example(
    rng: np.random.Generator, split: Split = "train", charts: float = CHARTS
) -> tuple[Picture, list[Exchange]]:
    """A picture with a long answer and several short ones; `charts`: how often it is a chart."""
    if rng.random() < charts:
        kinds = [f"{READ[int(rng.integers(len(READ)))]}_chart"] * SHORT + ["chart_description"]
    else:
        drawn = rng.integers(len(SCENES), size=SHORT)
        kinds = [SCENES[int(i)] for i in drawn] + ["description"]
    # some scenes of one object, of which there is little to say at length
    lone = rng.random() < 0.1 and kinds[-1] == "description"
    picture = sample_picture(
        rng, kinds[0] if lone or kinds[-1] != "description" else kinds[-1], split
    )
    exchanges = [exchange_about(rng, picture, kind, split) for kind in kinds]
    return picture, [exchange for exchange in exchanges if exchange]


def hearsay(rng: np.random.Generator, picture: Picture) -> str:
    """The text in front of a verdict: two or three descriptions, each with its own mistakes."""
    kind = LONG_KINDS[isinstance(picture, Chart)]
    paths = []
    for _ in range(int(rng.integers(2, 4))):
        share = MISTAKEN[int(rng.integers(len(MISTAKEN)))]
        said = exchange_about(rng, mistaken(rng, picture, share), kind)
        assert said is not None
        paths.append(said.answer)
    return VERDICT["ask"].format(paths="\n".join(paths), question="")


def draw_examples(
    turns: Turns,
    size: int,
    side: int,
    places: int,
    charts: float,
    rng: np.random.Generator,
    step: int,
) -> QuestionBatch:
    """Rows of a training step: `size` pictures of `side` pixels and `places` tokens each."""
    drawn = [sample_example(rng, charts=charts) for _ in range(size)]
    heard = [""] * size
    if rng.random() < HEARD:
        drawn = [(picture, said[:-1]) for picture, said in drawn]  # a description needs no help
        heard = [hearsay(rng, picture) for picture, _ in drawn]
    return pack(turns, drawn, side, places, heard)


def pack(
    turns: Turns,
    rows: list[tuple[Picture, list[Exchange]]],
    side: int,
    places: int,
    heard: list[str] | None = None,
) -> QuestionBatch:
    """Rows of a picture each, of `side` pixels and `places` tokens, and the exchanges about it.

    `heard` is a text for each row that stands in front of all its questions.
    """
    before = heard or [""] * len(rows)
    packed = [
        _row(turns, exchanges, places, text)
        for (_, exchanges), text in zip(rows, before, strict=True)
    ]
    # few lengths: a processor's kernels are made for each, and kept
    length = -(-max(len(ids) for ids, *_ in packed) // MULTIPLE) * MULTIPLE
    ids, segments, positions, weights = (
        torch.tensor([column + [fill] * (length - len(column)) for column in columns])
        for columns, fill in zip(
            zip(*packed, strict=True), (turns.tokenizer.pad_token_id, -1, 0, 0.0), strict=True
        )
    )
    shown, patches = [picture for picture, _ in rows], math.isqrt(places)
    pictures = torch.from_numpy(np.stack([draw(picture, side) for picture in shown]))
    labels = all_labels(shown, patches, side // patches)
    return QuestionBatch(pictures, ids, segments, positions, weights, labels)


def label_sizes(patches: int) -> dict[str, int]:
    """Labels of `all_labels` and the number of names of each, 0 for none."""
    return {**LABELS, **dict.fromkeys(PLACES, 1 + patches)}


def all_labels(pictures: Sequence[Picture], patches: int, patch: int) -> Tensor:
    """Labels `[B, patches², 5]` of what each patch of `patch` pixels shows, and of where it is."""
    shown = np.stack([patch_labels(picture, patches, patch) for picture in pictures])
    places = np.broadcast_to(place_labels(patches), (*shown.shape[:-1], len(PLACES)))
    return torch.from_numpy(np.concatenate([shown, places], -1)).flatten(1, 2)


def _row(
    turns: Turns, exchanges: list[Exchange], places: int, heard: str
) -> tuple[list[int], list[int], list[int], list[float]]:
    ids = turns.before + [turns.image] * places + turns.said(heard)
    shared = len(ids)
    segments, positions, weights = [0] * shared, list(range(shared)), [0.0] * shared
    for number, exchange in enumerate(exchanges, 1):
        question = turns.said(exchange.question) + turns.between
        answer = turns.said(exchange.answer) + turns.end
        more = len(question) + len(answer)
        ids += question + answer
        segments += [number] * more
        positions += range(shared, shared + more)
        weight = 1.0 if exchange.kind in LONG_KINDS else SHORT_WEIGHT
        weights += [0.0] * len(question) + [weight] * len(answer)
    return ids, segments, positions, weights
