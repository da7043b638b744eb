"""Base of recipes that learn from descriptions which a model and its drafter write together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ...errors import InputError
from ...models.transformers.vlm_folder import load_vlm
from ...worlds.shapes.exchanges import (
    LONG_KINDS,
    Picture,
    draw,
    held_out_descriptions,
    sample_exchange,
)
from ..base import BaseRecipe
from ..feature_cache import cache_folder
from ..labelled import gathered
from ..settings import Bounded, Known, settings_of
from ..trainer import TrainConfig
from .head import side_of
from .prompts import CHARTS, Questions
from .teacher import VlmTeacher

TOGETHER = 32  # pictures that are described at a time
LIMIT = 220  # tokens of a description
HELD_OUT = 4  # pictures to learn from for one that is held out
PICTURES = {"pictures": Bounded(2400, 2**20)}  # a setting


class Asked(NamedTuple):
    """Pictures and requests for their descriptions, which a model is shown."""

    pictures: list[Picture]
    shown: Questions


class VlmPairRecipe(BaseRecipe):
    """Recipe on descriptions of pictures of the shapes world by a frozen model and its drafter.

    A subclass writes and labels them (`described`); what they give is kept beside the pipeline.

    Args:
        config, rate: see `BaseRecipe`.
        pipeline: folder of the two, in transformers' layout.
        settings: as text, those that are `known`.

    Attributes:
        known: settings by name: what each is unless it is given, and the most that it may be.
        cache: what is kept.
        learned, unseen: what `described` gave of pictures to learn from, and of held-out ones.

    Raises:
        InputError: there is no drafter, a setting is wrong, or the pictures gave too little.
    """

    kind = "VlmPipeline"
    known: ClassVar[Known] = PICTURES
    cache: str

    def __init__(
        self, config: TrainConfig, pipeline: Path, settings: Mapping[str, str] | None, rate: float
    ) -> None:
        super().__init__(config, pipeline, rate)
        what = self.name.replace("_", " ")
        self.settings = settings_of(settings or {}, self.known, what)
        if not (pipeline / "drafter").is_dir():
            raise InputError(f"{pipeline} has no drafter, whose tokens a {what} is to learn from")
        parts = load_vlm(pipeline, torch.float32)
        small = load_vlm(pipeline / "drafter", torch.float32, ["model"])["model"]
        self.target = parts["model"].to(config.device).requires_grad_(False)
        told = parts["processor"], LIMIT
        self.teacher = VlmTeacher(self.target, *told)
        self.words = parts["processor"].tokenizer
        self.drafter = VlmTeacher(small.to(config.device).requires_grad_(False), *told)
        self.folder = cache_folder(pipeline, self.cache, [".", "drafter"])
        count = round(self.settings["pictures"])
        self.learned = self.gathered("train", count)
        self.unseen = self.gathered("held_out", max(1, count // HELD_OUT))

    @abstractmethod
    def described(self, asked: Asked, first: int) -> tuple[Tensor, ...]:
        """Examples to learn from, of descriptions; entries of each tensor are joined.

        `first` is the first one's number, of which chance depends.
        """

    @abstractmethod
    def check_labels(self, found: Sequence[Tensor], split: str, count: int) -> None:
        """Raise an `InputError` unless something can be learned from `count` pictures."""

    def gathered(self, split: str, count: int) -> tuple[Tensor, ...]:
        """Examples of descriptions of `count` pictures, on the device of the run."""
        file = self.folder / f"{split}-{count}-{self.config.seed}.pt"
        asked = cache(partial(self._asked, split, count))

        def made(first: int, end: int) -> tuple[Tensor, ...]:
            return self.described(self.shown(asked()[first:end]), first)

        found = gathered(file, split, count, TOGETHER, made)
        self.check_labels(found, split, count)
        return tuple(part.to(self.config.device) for part in found)

    def shown(self, asked: Sequence[tuple[Picture, str]]) -> Asked:
        """Pictures and requests as a model is shown them."""
        side = side_of(self.target)
        pixels = [Image.fromarray(draw(picture, side)) for picture, _ in asked]
        return Asked([p for p, _ in asked], Questions(pixels, [text for _, text in asked]))

    def _asked(self, split: str, count: int) -> list[tuple[Picture, str]]:
        """Pictures and requests for descriptions."""
        if split == "held_out":
            lines = held_out_descriptions(count, seed=1)  # not those of the fixed lists
            return [(line.picture(), line.question) for line in lines]
        asked = []
        rng = np.random.default_rng([self.config.seed, 2])
        for _ in range(count):
            picture, exchange = sample_exchange(rng, LONG_KINDS[int(rng.random() < CHARTS)])
            asked.append((picture, exchange.question))
        return asked
