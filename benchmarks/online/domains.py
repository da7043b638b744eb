"""Domains of prompts: files of one's own, or scenes and charts of the shapes world."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmspec.errors import InputError
from mmspec.train.text.lines import read_texts
from mmspec.train.vlm.head import side_of
from mmspec.worlds.shapes.exchanges import draw, sample_exchange

from .measure import Domain

SHAPES = {"scenes": "description", "charts": "chart_description"}


def of_files(paths: Sequence[Path], answers: int) -> list[Domain]:
    """A domain per file of lines `{"prompt": text}`, which are asked in turn, again if need be.

    Raises:
        InputError: a line is no such object, a file has none, or there is a single domain.
    """
    if len(paths) < 2:
        raise InputError("a change takes two domains: give --domain FILE once more")
    found = []
    for path in paths:
        texts = read_texts(path, "prompt")
        if not texts:
            raise InputError(f"{path} has no prompts")
        asked = [{"prompt": texts[n % len(texts)]} for n in range(answers)]
        found.append(Domain(path.stem, asked))
    return found


def of_shapes(model: Any, answers: int, seed: int) -> list[Domain]:
    """Descriptions of scenes, then of charts, for a model that sees."""
    rng, side, found = np.random.default_rng(seed), side_of(model), []
    for name, kind in SHAPES.items():
        asked: list[dict[str, Any]] = []
        for _ in range(answers):
            picture, exchange = sample_exchange(rng, kind)
            image = Image.fromarray(draw(picture, side))
            asked.append({"prompt": exchange.question, "image": image})
        found.append(Domain(name, asked))
    return found
