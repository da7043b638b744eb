"""Counters of block video: rows are clips, tokens are blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field, fields
from typing import Any

import torch

from ...devices import wait
from ...engine.stats import SpecStats


@dataclass
class VideoStats(SpecStats):
    """Counters of a batch of clips.

    A call is a forward pass of the target: a block takes one a step, and blocks that wait too long
    to be written to its cache one more.

    Args:
        device: that parts wait for, so that they have all their seconds; None: the processor.

    Attributes:
        parts: seconds for "draft", "decode", "reward", "regenerate", "commit"; they lie within the
            phases of the loop, and none is counted twice: of a draft that was made ahead, "draft"
            has what was waited for, and what lay under the reward is in the other parts alone.
            Drafts that stood are read along with the next block that the target makes; "commit" has
            their share of its seconds, by the blocks in its calls.
        made_by: of every block of every clip, "drafter" or "target".
        rewards: of the frames that the drafter proposed for each; empty where nobody judged.
        layers: layers of the target's network that ran for each clip, in all of its calls.
        reused_layers: those that did not run, since they added what they had added to the block
            before.
        unjudged: blocks that were rejected because the reward failed or is no number.
        reason: why the first of them was; None: there was none.
        wasted: blocks that were drafted ahead, wholly or in part, and thrown away, since the one
            before them fell or the clip was interrupted. How many of a batch were begun by then is
            a matter of time, so this alone may differ from run to run.
    """

    parts: dict[str, float] = field(default_factory=dict)
    made_by: list[list[str]] = field(default_factory=list)
    rewards: list[list[list[float]]] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    reused_layers: list[int] = field(default_factory=list)
    unjudged: int = 0
    reason: str | None = None
    wasted: int = 0
    device: InitVar[torch.device | None] = None

    def __post_init__(self, device: torch.device | None) -> None:
        self._device = device or torch.device("cpu")  # no field: those are told as JSON

    def start(self, rows: int) -> None:
        super().start(rows)
        self.made_by, self.rewards = [[] for _ in range(rows)], [[] for _ in range(rows)]
        self.layers, self.reused_layers = [0] * rows, [0] * rows

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of its block to `parts[name]`; a draft that is made ahead goes on."""
        started = time.perf_counter()
        yield
        wait(self._device)
        self.parts[name] = self.parts.get(name, 0.0) + time.perf_counter() - started

    def move(self, source: str, to: str, share: float, since: float) -> None:
        """Count a share of the seconds of a part as another's, of those from `since` on."""
        seconds = share * (self.parts.get(source, 0.0) - since)
        if seconds:
            self.parts[source] -= seconds
            self.parts[to] = self.parts.get(to, 0.0) + seconds

    @property
    def drafted_share(self) -> float:
        """Share of all blocks that are the drafter's."""
        makers = [maker for clip in self.made_by for maker in clip]
        return makers.count("drafter") / max(1, len(makers))

    @property
    def reused_share(self) -> float:
        """Share of the layers of all calls that did not run."""
        return _share(sum(self.reused_layers), sum(self.layers))

    @property
    def phases(self) -> dict[str, float]:
        """The parts of the phases, and the reading of prompts."""
        return {"encode": self.seconds.get("encode", 0.0), **self.parts}

    def decode_seconds(self, whole: float) -> float:
        """Seconds of a whole call, as blocks are shown while they are made."""
        return whole

    def of_sample(self, row: int) -> dict[str, Any]:
        reused = _share(self.reused_layers[row], self.layers[row])
        own = {"made_by": self.made_by[row], "reused_share": reused}
        return {**super().of_sample(row), **own}

    def as_dict(self) -> dict[str, Any]:
        own = {f.name: getattr(self, f.name) for f in fields(self)[len(fields(SpecStats)) :]}
        rewards = [[[None if r != r else r for r in block] for block in c] for c in self.rewards]
        own |= {"drafted_share": self.drafted_share, "rewards": rewards}  # JSON has no NaN
        return {**super().as_dict(), **own, "reused_share": self.reused_share}


def _share(reused: int, ran: int) -> float:
    return reused / max(1, reused + ran)
