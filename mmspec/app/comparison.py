"""Run a request speculatively and then plainly, on one model, and compare the two."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..methods import SpecConfig
from ..pipelines.base import PLAIN
from . import markup, method_text
from .generation_view import GenerationRequest, GenerationView
from .job_queue import QueuedJob
from .model_cache import Model

PAUSE = 0.25  # seconds between two views at least: making and sending them takes time too
REST = 4  # times that a view took, between it and the next at least
HERE = "one prompt on this machine"


@dataclass(frozen=True)
class State:
    """HTML that the page shows of a run."""

    headline: str = ""
    speculative: str = ""
    plain: str = ""


Make = Callable[[Any, GenerationRequest], GenerationView]


class Comparison:
    """Two runs of a request, by its method and then plainly; the job gets states and may stop it.

    One after the other, since two at once would slow each other down; each is shown in its panel
    while it goes. Seconds are those of the loop, which does not know that somebody watches: drawing
    a view is in no phase of it. The first run of a kind is slow, so each has a round of warm-up, or
    as many as it takes to draft. A run stops after so many `seconds` at the latest.
    """

    def __init__(
        self,
        make: Make,
        model: Model,
        request: GenerationRequest,
        job: QueuedJob[State],
        seconds: float,
    ) -> None:
        self.make, self.model, self.request, self.job = make, model, request, job
        self.seconds = seconds
        self._until = time.monotonic() + seconds
        self._late = False  # it stopped for that
        self.views: dict[str, GenerationView] = {}
        self.state = State()
        self._unknown = ""
        self._shown = self._took = 0.0

    def run(self) -> None:
        """Run both, and tell the result."""
        pipe = self.model.pipe
        before = pipe.speculation

        def interrupt() -> None:
            pipe.interrupt = True

        try:
            with self.job.stopped_by(interrupt):
                for place, config in (("speculative", self.request.config), ("plain", PLAIN)):
                    pipe.enable_speculation(config)
                    if not self._stops():
                        self._warm(config)
                    if not self._stops():
                        self._run(place)
        finally:
            pipe.enable_speculation(before)
        self._tell(self._result())

    def _stops(self) -> bool:
        self._late = self._late or time.monotonic() > self._until
        return self.job.cancelled or self._late

    def _warm(self, config: SpecConfig) -> None:
        kind = config, tuple(sorted(self.request.call.items()))
        if kind in self.model.warm:
            return
        view, rounds, begun = self.make(self.model.pipe, self.request), 0, time.monotonic()

        def on_round() -> bool:
            nonlocal rounds
            rounds += 1
            self.model.first_round = (time.monotonic() - begun) / rounds
            if not (stops := self._stops() or rounds >= view.first_rounds):
                self._tell_warming(view.first_rounds - rounds)
            return stops

        self._tell_warming(view.first_rounds)
        view.run(on_round)
        if not self._stops():
            self.model.warm.add(kind)

    def _tell_warming(self, rounds: int) -> None:
        many = "a round" if rounds == 1 else f"{rounds} rounds"
        each = self.model.first_round
        wait = "" if each is None else f", about {markup.seconds(each * rounds)}"
        self._tell(f"Warming up by {many}{wait}: the first of a kind is slow, so it is not timed …")

    def _run(self, place: str) -> None:
        view = self.views[place] = self.make(self.model.pipe, self.request)
        self._unknown = method_text.unknown(view.unknown)

        def on_round() -> bool:
            if not (stops := self._stops()) and self._due():
                self._show(place, view)
                left = view.seconds_left
                wait = "" if left is None else f", about {markup.seconds(left)} left"
                name, then = self.request.name, "plain decoding follows, with the same seed"
                told = f"{name} is at work{wait}; {then}."
                if place == "plain":
                    so_far = f"{self._ratio()} (an estimate; {HERE})"
                    told = f"Plain decoding is at work{wait}. So far: {so_far}."
                self._tell(told)
            return stops

        view.run(on_round)
        self._show(place, view)

    def _due(self) -> bool:
        return self.job.shown and time.monotonic() - self._shown >= max(PAUSE, REST * self._took)

    def _show(self, place: str, view: GenerationView) -> None:
        begun = time.monotonic()
        title, note = "plain", "the baseline"
        if place == "speculative":
            title, note = self.request.name, "" if view.stats is None else view.stats.contract
        html = markup.panel(title, note, markup.meters(view.meters()), view.html())
        self.state = replace(self.state, **{place: html})
        self._shown = time.monotonic()
        self._took = self._shown - begun

    def _tell(self, text: str) -> None:
        headline = markup.message(text) + markup.message(self._unknown)
        self.state = replace(self.state, headline=headline)
        self.job.tell(self.state)

    def _result(self) -> str:
        ratio = self._ratio()
        if self.job.cancelled or self._late:
            why = "" if self.job.cancelled else f": a run has at most {self.seconds:,g} seconds"
            told = f" Of what ran: {ratio} (an estimate; {HERE})." if ratio else ""
            return f"Stopped{why}.{told}"
        return f"Done: {self.request.name} is {ratio} ({HERE}; a report says more)."

    def _ratio(self) -> str:
        """Speed-up in words; from seconds per unit, for answers may differ in length."""
        pair = [self.views[p].seconds_per_unit for p in ("speculative", "plain") if p in self.views]
        if len(pair) < 2 or pair[0] is None or pair[1] is None:
            return ""
        return f"{pair[1] / pair[0]:.2f}× as fast as plain decoding"
