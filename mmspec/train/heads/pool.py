"""The newest answers of a teacher, which drafters learn from several times each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from ..image.distillation_data import recent_batch
from ..trainer import Draw
from .head_batch import HeadBatch

POOL = 32  # batches that are kept, the newest ones
USES = 4  # steps for a new one: answers take several times as long as a step
TOGETHER = 8  # batches whose answers are written at once


class LessonPool:
    """Batches of lessons by number, made as training comes to them.

    Args:
        make: gives `TOGETHER` batches from a number on; its second argument says whether their
            pictures are shown.
        device: of the run: a kind of autocast that answers are made without.
    """

    def __init__(self, make: Callable[[int, bool], list[HeadBatch]], device: str) -> None:
        self._make, self._device = make, torch.device(device).type
        self._held: dict[tuple[int, bool], HeadBatch] = {}

    @property
    def draw(self) -> Draw:
        """The number of a step's batch: new ones in turn, old ones by chance."""
        return partial(recent_batch, POOL, USES)

    def batch(self, number: int, seen: bool = True) -> HeadBatch:
        """A batch of the pool; `seen` says whether its pictures are shown."""
        if (number, seen) not in self._held:
            first = number - number % TOGETHER
            with torch.autocast(self._device, enabled=False):  # it answers as in decoding
                made = self._make(first, seen)
            self._held |= {(n, seen): one for n, one in enumerate(made, start=first)}
            for key in [key for key in self._held if key[0] <= number - POOL]:
                del self._held[key]
        return self._held[number, seen]


def told_of(record: Mapping[str, Any]) -> str:
    """Source of what a training learned, for a card.

    Args:
        record: the trainer's.
    """
    config, step = record["config"], record["step"]
    fresh = -(-min(step, config["repeat"] or step) // USES)  # batches of a process
    answers = fresh * config["batch_size"] * record["processes"]
    times = round(step / fresh) if fresh else 0
    return f"{answers:,} answers of the target's own, about {times} times each"
