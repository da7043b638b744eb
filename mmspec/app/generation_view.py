"""Base of the live views of a generation, for all modalities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from PIL import Image

from ..engine.stats import SpecStats
from ..methods import SpecConfig
from ..models.text_encoder import unknown_words


@dataclass(frozen=True)
class GenerationRequest:
    """Checked request of a visitor.

    Attributes:
        prompt: caption or question.
        config, name: how to speculate, and what that is called.
        seed: of both runs.
        call: further arguments of the pipeline's call.
        picture: what a question is about.
    """

    prompt: str
    config: SpecConfig
    name: str
    seed: int = 0
    call: dict[str, Any] = field(default_factory=dict)
    picture: Image.Image | None = None


class GenerationView(ABC):
    """A run of a pipeline that shows how far it is.

    Attributes:
        unit: what it makes, in the plural.
        each: what the target's calls are counted for.
        made: of every unit so far, by how much it is the drafter's.
        total: units in the end; fewer where the model may stop by itself.
        stats: those so far; None before the first round.
        over: there is nothing to come.
    """

    unit: ClassVar[str] = "tokens"
    each: ClassVar[str] = "tokens per call of the target"

    def __init__(self, pipe: Any, request: GenerationRequest) -> None:
        self.pipe, self.request = pipe, request
        self.made: list[float] = []
        self.total = 0
        self.stats: SpecStats | None = None
        self.over = False

    @property
    def tokenizer(self) -> Any:
        """Tokenizer of the prompt; None: the model is told no words."""
        return self.pipe.tokenizer

    @property
    def unknown(self) -> list[str]:
        """Words of the prompt that the model can't know."""
        return unknown_words(self.tokenizer, self.request.prompt) if self.tokenizer else []

    @property
    def first_rounds(self) -> int:
        """Rounds in which all that it does is done once."""
        return 1

    def run(self, on_round: Callable[[], bool]) -> None:
        """Generate; `on_round` is called after every round, and True stops."""

        def told(pipe: Any, number: int, done: int, state: dict[str, Any]) -> None:
            self.stats = state["stats"]
            self.observe(state)
            if on_round():
                pipe.interrupt = True

        out = self.generate(
            generator=torch.Generator().manual_seed(self.request.seed),
            callback_on_step_end=told,
            **self.request.call,
        )
        self.stats, self.over = out.stats, True

    @abstractmethod
    def generate(self, **call: Any) -> Any:
        """Call the pipeline."""

    @abstractmethod
    def observe(self, state: dict[str, Any]) -> None:
        """Look at what a callback is told."""

    @abstractmethod
    def html(self) -> str:
        """HTML of the output so far."""

    def drafted(self, state: dict[str, Any]) -> list[float]:
        """Drafter's share of each token id that the last round emitted, 0 or 1."""
        alone = self.pipe.speculation.resolve(self.pipe.modality).drafter_only
        rows: list[list[bool]] = state["context"].drafted()
        return [float(alone or stood) for stood in rows[0]]

    @property
    def seconds_per_unit(self) -> float | None:
        """Seconds of the loop for a unit, mean so far."""
        if not self.made or self.stats is None or not self.stats.loop_seconds:
            return None
        return self.stats.loop_seconds / len(self.made)

    @property
    def seconds_left(self) -> float | None:
        """About how long it goes on, by the mean so far; None: it may end anywhere."""
        each = self.seconds_per_unit
        return each * (self.total - len(self.made)) if each is not None and self.total else None

    def meters(self) -> list[tuple[str, str]]:
        """Names and figures of how it goes."""
        stats = self.stats
        if stats is None:
            return []
        of = f" of {self.total}" if self.total else ""
        rows = [(self.unit, f"{len(self.made)}{of}"), ("seconds", f"{stats.loop_seconds:.2f}")]
        if sibling := stats.per_sample(shared=True).get("sibling_calls_per_sample"):
            rows.append(("calls of the sibling", f"{sibling * stats.samples:.0f}"))
        if sum(stats.calls):
            rows.append(self.calls(stats))
        if sum(stats.drafted):
            stood, drafted = sum(stats.accepted), sum(stats.drafted)
            rows.append(("drafts kept", f"{stood:,} of {drafted:,} ({stood / drafted:.0%})"))
        if self.made:
            # a count: beside the share of the drafts another share of something else would confuse
            count = f"{round(sum(self.made), 1):,g} of {len(self.made):,} {self.unit}"
            rows.append(("output that was drafted", count))
        return rows

    def calls(self, stats: SpecStats) -> tuple[str, str]:
        """Name and figure for the target's calls."""
        return self.each, f"{stats.mean_acceptance_length:.2f}"
