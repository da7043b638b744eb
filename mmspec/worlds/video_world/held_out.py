"""The fixed list of held-out prompts, each with a clip that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...files import parse_json, read_text
from .clip import Clip, sample
from .prompts import ClipPrompt
from .vocabulary import KINDS, Kind

_STREAM = 50_000  # of seeds, apart from those of training
_DRAWS = 20  # of a prompt, before one is told again


@dataclass(frozen=True)
class HeldOutClip:
    """A line of the list; the seed makes the clip again.

    Attributes:
        id: unique in its list.
        seed: of the generator, with which `sample` gives all the rest.
    """

    id: str
    seed: tuple[int, ...]
    prompt: ClipPrompt

    def clip(self) -> Clip:
        """A clip that shows the prompt.

        Raises:
            InputError: the line is not what its seed makes.
        """
        prompt, clip = _made(self.seed, self.prompt.tag)
        if prompt != self.prompt:
            raise InputError(f"prompt {self.id} does not fit its seed: it is of another version")
        return clip

    def line(self) -> dict[str, Any]:
        """What stands in the file."""
        return {"id": self.id, "seed": list(self.seed), **self.prompt.metadata()}


def held_out_clips(number: int, seed: int = 0) -> Iterator[HeldOutClip]:
    """Prompts with what training never shows, the kinds in turn, none twice while a kind has more.

    A hundred of them, written by the shapes world's `write_held_out`, are
    `assets/prompts/clips.jsonl`; 20 of seed 7, none of them the same, are
    `clips-tuning.jsonl`, by which thresholds are chosen.
    """
    told: set[str] = set()
    for place in range(number):
        kind = KINDS[place % len(KINDS)]
        for draw in range(_DRAWS):
            key = (_STREAM, seed, place, draw)
            prompt, _ = _made(key, kind)
            if prompt.prompt not in told:
                break
        told.add(prompt.prompt)
        yield HeldOutClip(f"{kind}-{place}", key, prompt)


def read_held_out_clips(path: Path) -> list[HeldOutClip]:
    """The lines of a list."""
    rows = (parse_json(line, str(path)) for line in read_text(path).splitlines())
    return [HeldOutClip(row.pop("id"), tuple(row.pop("seed")), ClipPrompt(**row)) for row in rows]


def _made(seed: tuple[int, ...], kind: Kind) -> tuple[ClipPrompt, Clip]:
    return sample(np.random.default_rng(seed), kind, "held_out")
