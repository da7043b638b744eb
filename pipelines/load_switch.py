"""Choice between sizes of drafts and plain decoding, call by call, by tokens a second.

A processor that is busy with many rows has no time to spare for drafts. Goodput lengths (SmartSpec,
Liu et al. 2024) leave drafts out round by round, and the drafter still reads every prompt. Here
whole calls of a pipeline are compared, reading prompts, keeping books and all, so it serves tokens,
vectors and video alike, and windows of drafts that get better from round to round.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Any, TypeVar

import torch

from ..errors import InputError
from ..methods import PIPELINES, Modality, SpecConfig
from .arguments import is_chat

F = TypeVar("F", bound=Callable[..., Any])
AUTO = "auto"  # the length policy that asks for such a choice
_TRIES = 2  # calls of each kind before one is chosen; the first of them, a slow one, tells nothing
_FADE = 0.7  # of what was seen, with every further call
_PATIENCE = 8  # calls until another kind is tried again, doubled whenever it loses
_LONGEST = 128  # that patience grows to
_SEEDS = 2**32  # people set smaller ones; torch begins with 64 random bits
_GOES_ON = ("resume", "memory")  # arguments that hold what another call has left
_any_sample: ContextVar[bool] = ContextVar("any_sample", default=False)


def now() -> float:
    """Seconds by the clock that calls are timed by."""
    return time.perf_counter()


@contextmanager
def any_sample(free: bool = True) -> Iterator[None]:
    """Let seeds give other samples of the same law while the block runs, if they are `free` to.

    For callers that give generators and keep no seed, such as servers and measurements of speed.
    """
    token = _any_sample.set(free)
    try:
        yield
    finally:
        _any_sample.reset(token)


@dataclass
class _Pace:
    """Tokens and seconds of calls of one kind, the latest counting most."""

    tokens: float = 0.0
    seconds: float = 0.0
    calls: int = 0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def learn(self, tokens: int, seconds: float) -> None:
        if self.calls:
            self.tokens = _FADE * self.tokens + tokens
            self.seconds = _FADE * self.seconds + seconds
        self.calls += 1


@dataclass
class _Size:
    """Calls of one size: how fast each choice is, and which one runs."""

    paces: list[_Pace]
    best: int = 0
    since: int = 0
    patience: int = _PATIENCE
    turn: int = 0

    def choose(self) -> int:
        """Choose for the next call: the best, or now and then another one."""
        for number, pace in enumerate(self.paces):
            if pace.calls < _TRIES:
                return number
        others = [number for number in range(len(self.paces)) if number != self.best]
        if self.since < self.patience or not others:
            return self.best
        return others[self.turn % len(others)]

    def learn(self, chosen: int, tokens: int, seconds: float) -> None:
        """Learn what a call took; a choice that was tried again is taken if it is the fastest."""
        self.paces[chosen].learn(tokens, seconds)
        if any(pace.calls < _TRIES for pace in self.paces):
            return
        tried = self.since >= self.patience
        fastest = max(range(len(self.paces)), key=lambda number: self.paces[number].rate)
        if self.paces[fastest].rate > self.paces[self.best].rate:
            self.best, self.since, self.patience = fastest, 0, _PATIENCE
        elif tried:
            self.since, self.patience = 0, min(2 * self.patience, _LONGEST)
            self.turn += 1
        else:
            self.since += 1


@dataclass
class LoadSwitch:
    """Choice among configurations, apart for each size of batch, by tokens a second of whole calls.

    Sizes are told apart by powers of two, so a queue that empties comes back to sizes at which
    speculation pays. Every choice runs twice at every size; then the one with the most tokens a
    second does, and now and then another again.
    """

    sizes: dict[Any, _Size] = field(default_factory=dict)

    @contextmanager
    def call(
        self, choices: Sequence[SpecConfig], rows: int, place: object = None
    ) -> Iterator[tuple[SpecConfig, Callable[[int], None]]]:
        """Choose for a call of so many rows; the function is to be told the tokens of its output.

        Args:
            choices: the first is the one that runs where nothing is known.
            rows: 1 or more.
            place: what else calls must have in common to be compared, such as a device.
        """
        key = tuple(choices), (rows - 1).bit_length(), place
        size = self.sizes.setdefault(key, _Size([_Pace() for _ in choices]))
        chosen, started = size.choose(), now()

        def told(tokens: int) -> None:
            seconds = now() - started
            if tokens and seconds > 0:
                size.learn(chosen, tokens, seconds)

        yield choices[chosen], told


def automatic(config: SpecConfig, modality: Modality) -> SpecConfig:
    """A method that is named without settings, with length "auto" if its output is exact.

    A lossy method, whose output plain decoding would not give, stays as it is; so does one whose
    drafts take no other size.
    """
    resolved = config.resolve(modality)
    plain = config != SpecConfig(config.method) or not resolved.drafts
    if plain or resolved.contract != "exact":
        return config
    try:
        made = config.replace(length=AUTO)
        made.resolve(modality)
    except InputError:
        return config
    return made


@lru_cache(maxsize=256)
def choices_of(config: SpecConfig, modality: Modality) -> tuple[SpecConfig, ...]:
    """Configurations that length "auto" chooses from: its own size, none, twice and half of it.

    A size that is set is the only one beside none; without "auto" there is one choice.
    """
    resolved = config.resolve(modality)
    if not resolved.length.switches:
        return (config,)
    own = config.replace(length=None)
    answers = {f"target_{n}" for n in ("weights", "compressor", "keep", "cache")}
    answers |= resolved.target_options
    kept = {name: value for name, value in own.to_dict().items() if name in answers}
    found = [own, SpecConfig("plain", **kept)]
    knob = resolved.drafter.knob or resolved.drafter.depth
    usual = own.resolve(modality).options.get(knob or "")
    if isinstance(usual, int) and knob not in config.options and not resolved.drafter.fixed:
        # heads, and models that say blocks, were trained for so many tokens at most
        bounded = resolved.head is not None or resolved.drafter.model == "block"
        for size in (usual // 2,) if bounded else (2 * usual, usual // 2):
            try:
                made = own.replace(**{str(knob): size})
                made.resolve(modality)
            except InputError:
                continue  # out of range, or too large a tree
            found.append(made)
    return tuple(found)


def switched(function: F) -> F:
    """Decorate a pipeline's `__call__`: for this call, set the choice of its `switch`.

    Nothing is chosen, and the first choice runs, where the call's sample would be another one: it
    is given a generator, or torch has been seeded, and it isn't greedy; or it goes on with what
    another call has left. `any_sample` lifts the first.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def call(pipe: Any, *args: Any, **kwargs: Any) -> Any:
        before = pipe.speculation
        choices = choices_of(before, pipe.modality)
        if choices == (before,):
            return function(pipe, *args, **kwargs)
        bound = signature.bind(pipe, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        free = _free(pipe.modality, given)
        place = str(pipe.device), str(pipe.dtype)
        try:
            with pipe.switch.call(choices, _rows(given), place) as (chosen, told):
                pipe.speculation = chosen if free else choices[0]
                out = function(pipe, *args, **kwargs)
                stats = out[1] if isinstance(out, tuple) else out.stats
                if free and not pipe.interrupt:
                    told(sum(stats.emitted))
        finally:
            pipe.speculation = before
        return out

    return call  # type: ignore[return-value]  # the same signature


def _free(modality: Modality, given: Mapping[str, Any]) -> bool:
    """True if a call's output may be another sample, or is the same by every exact method."""
    if any(given.get(name) is not None for name in _GOES_ON):
        return False
    greedy = PIPELINES[modality].tokens == "ids" and given.get("temperature") == 0
    unseeded = given.get("generator") is None and torch.initial_seed() >= _SEEDS
    return greedy or unseeded or _any_sample.get()


def _rows(given: Mapping[str, Any]) -> int:
    """Rows that a call runs at a time."""
    told = given.get("prompt")
    told = given.get("class_labels") if told is None else told
    several = isinstance(told, list | tuple) and not is_chat(told)
    count = len(told) if told is not None and several else 1
    for name in ("num_images_per_prompt", "num_videos_per_prompt"):
        count *= given.get(name) or 1
    return max(1, min(count, given.get("batch_size") or count))
