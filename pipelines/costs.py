"""Seconds of network calls on this machine, measured on first use; experience of generations."""

from __future__ import annotations

import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..engine.length.goodput import Experience
from ..methods import ResolvedConfig
from ..models.guided import GuidedDecoder
from ..models.mar.denoiser import HeadDenoiser
from ..models.mar.iterations import MarPlan

_STEPS, _REPEATS = 4, 3  # of a head whose steps are timed
_ENOUGH = 0.2  # seconds of timed calls, after which a few will do
_MEASURED = (1, 2, 3, 5, 9, 17, 33, 65, 129, 257)  # new tokens a row; between them: a line


class Costs:
    """Seconds of calls by network, rows and new tokens a row; of heads by rows and condition."""

    def __init__(self) -> None:
        self._seconds: WeakKeyDictionary[object, dict[tuple[int, int], float]] = WeakKeyDictionary()
        # by target and drafter: what was learnt goes with them
        self._experience: WeakKeyDictionary[
            object, WeakKeyDictionary[object, dict[tuple[ResolvedConfig, int], Experience]]
        ] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[Costs], tuple[()]]:
        return Costs, ()  # a copy is of other networks, maybe elsewhere: it measures anew

    def call(self, model: GuidedDecoder, tokens: int = 1) -> float:
        """Seconds of one call with `tokens` new tokens a row."""
        above = min(next(n for n in _MEASURED if n >= tokens), max(tokens, model.room))
        if above == tokens:
            return self._measured(model, tokens)
        below = max(n for n in _MEASURED if n < tokens)
        low, high = self._measured(model, below), self._measured(model, above)
        return low + (high - low) * (tokens - below) / (above - below)

    def experience(
        self,
        config: ResolvedConfig,
        target: GuidedDecoder,
        drafter: GuidedDecoder | None,
        stride: int = 1,
        rounded: GuidedDecoder | None = None,
    ) -> Experience:
        """Experience that a configuration's generations share; it starts with measured seconds."""
        drafters = self._experience.setdefault(target.decoder, WeakKeyDictionary())
        known = drafters.setdefault((drafter or target).decoder, {})
        key = (config, len(target.prefix))
        if key not in known:
            size, rounds = config.draft_size(stride), []
            for depth in range(size.deepest + 1):
                seconds = self.call(target, size.nodes(depth) + 1)
                if config.own_layers:
                    seconds += depth * self.call(target) / 2  # half the layers, for a start
                elif rounded is not None:
                    seconds += depth * self.call(rounded)  # what is drafted for it saves some
                else:
                    reads = drafter or target
                    calls = (-(-n // reads.entries) for n in size.draft_calls(depth))
                    seconds += sum(self.call(reads, n) for n in calls)
                rounds.append(seconds)
            known[key] = Experience(rounds)
        return known[key]

    def _measured(self, model: GuidedDecoder, tokens: int) -> float:
        key = (len(model.prefix), tokens)
        return self._once(
            model.decoder, key, lambda: model.seconds_per_call(tokens, enough=_ENOUGH)
        )

    def _once(self, of: object, key: tuple[int, int], measure: Callable[[], float]) -> float:
        known = self._seconds.setdefault(of, {})
        if key not in known:
            known[key] = measure()
        return known[key]

    def plain(
        self, denoiser: HeadDenoiser, condition: Tensor, plan: MarPlan, pictures: int
    ) -> float:
        """Seconds of the head in plain generation: all steps of every iteration, so many pictures.

        It is told `condition [R, D]` of some tokens; others take as long.
        """
        return sum(
            plan.steps(k) * self._step(denoiser, condition, pictures * plan.drawn(k))
            for k in range(plan.iterations)
        )

    def _step(self, denoiser: HeadDenoiser, condition: Tensor, rows: int) -> float:
        def measure() -> float:
            told = condition[torch.arange(rows, device=condition.device) % len(condition)]
            noise = told.new_zeros(rows, min(_STEPS, denoiser.steps), denoiser.channels)
            times = []
            for _ in range(_REPEATS):
                started = time.perf_counter()
                denoiser.sample(told, noise)[0, 0].item()  # wait for the device
                times.append((time.perf_counter() - started) / noise.shape[1])
            return min(times)

        return self._once(denoiser.head, (rows, condition.shape[1]), measure)
