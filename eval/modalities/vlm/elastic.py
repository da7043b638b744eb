"""What an elastic compressor chooses question by question, and what that costs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ....models.heads.specvlm import SpecVlmHead
from ....pipelines.output import VlmStats

SUM = "sum"  # several branches, each by its weight


@dataclass(frozen=True)
class Chosen:
    """For one question.

    Attributes:
        branch: of the compressor.
        visual, kept: tokens of its pictures, and how many of them the head reads.
        seconds: in the gate and the branches; of a batch, its share.
    """

    branch: str
    visual: int
    kept: int
    seconds: float


class CompressorClock:
    """Seconds in the gate and the compressor of a head, of all its calls since it was last read."""

    def __init__(self, head: SpecVlmHead) -> None:
        self._spent = self._since = 0.0
        for part in (head.gate, head.compressor):
            part.register_forward_pre_hook(self._begin)
            part.register_forward_hook(self._end)

    def read(self) -> float:
        """The seconds, which start from 0 again."""
        spent, self._spent = self._spent, 0.0
        return spent

    def _begin(self, *_: Any) -> None:
        self._since = time.perf_counter()

    def _end(self, *_: Any) -> None:
        self._spent += time.perf_counter() - self._since


def chosen(stats: VlmStats, seconds: float) -> list[Chosen]:
    """What was chosen for each question of a call; nothing where nobody chooses."""
    found = []
    rows = zip(stats.branches, stats.visual_tokens, stats.draft_visual_tokens, strict=True)
    for weights, visual, kept in rows if stats.branches else ():
        branch = next(iter(weights)) if len(weights) == 1 else SUM
        found.append(Chosen(branch, visual, kept, seconds / len(stats.branches)))
    return found
