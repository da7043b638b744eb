"""Answers one after the other, whose prompts change their domain, by drafters that learn or not."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mmspec.errors import InputError
from mmspec.eval.environment import environment
from mmspec.eval.measure.bootstrap import Interval, known_interval
from mmspec.methods import SpecConfig
from mmspec.train.heads.online import OnlineLearner

FROZEN, LEARNING, TABLE = "frozen", "learning", "table"
SCEPTIC = SpecConfig("token-recycling", table_lives=True)  # learns, too, and takes no gradients


@dataclass(frozen=True)
class Domain:
    """Prompts of one kind.

    Attributes:
        name: of the kind.
        asked: arguments of a pipeline call for each prompt.
    """

    name: str
    asked: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Lessons:
    """Settings of a head that learns as it is used.

    Attributes:
        every: answers after which it learns.
        steps: that it then takes.
        rate: learning rate; None: the learner's own.
        objective, fallen: see `OnlineLearner`.
    """

    every: int = 4
    steps: int = 2
    rate: float | None = None
    objective: str = "kl"
    fallen: bool = False


@dataclass
class Run:
    """Counters of one drafter, of every answer in turn.

    Attributes:
        emitted, calls: tokens, and calls of the target.
        drafted, accepted: tokens.
        seconds: of answering, prefill included.
        learning: seconds that it learned behind the answer.
        same: answers whose tokens are the frozen head's.
    """

    method: str
    emitted: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    learning: list[float] = field(default_factory=list)
    same: int = 0

    def tokens_per_call(self, part: slice) -> tuple[float, Interval | None]:
        """Tokens per call in a part of the answers, and the interval by resampling them."""
        told, calls = (np.array(x[part], dtype=np.float64) for x in (self.emitted, self.calls))

        def quotient(i: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.asarray(told[i].sum(1) / np.maximum(calls[i].sum(1), 1))

        return float(told.sum() / max(calls.sum(), 1)), known_interval(quotient, len(calls))

    def gain(self, other: Run, part: slice) -> tuple[float, Interval | None]:
        """Tokens per call more than another's, the same answers resampled of both."""
        counts = [
            np.array(x[part], dtype=np.float64)
            for x in (self.emitted, self.calls, other.emitted, other.calls)
        ]

        def distance(i: npt.NDArray[Any]) -> npt.NDArray[Any]:
            own, own_calls, theirs, their_calls = (x[i].sum(1) for x in counts)
            return np.asarray(own / np.maximum(own_calls, 1) - theirs / np.maximum(their_calls, 1))

        n = len(counts[0])
        return float(distance(np.arange(n)[None])[0]), known_interval(distance, n)

    def seconds_per_token(self, part: slice) -> float:
        """Seconds a token, those of learning included."""
        return (sum(self.seconds[part]) + sum(self.learning[part])) / sum(self.emitted[part])


@dataclass
class OnlineRecord:
    """Contents of `online.json`.

    Attributes:
        domains: their names, and how many answers each has, in the order in which they are asked.
        runs: by drafter: the head as it is, the head that learns, and a table of successors that
            lives on from answer to answer.
    """

    model: str
    method: str
    domains: list[tuple[str, int]]
    temperature: float
    seed: int
    lessons: Lessons
    environment: dict[str, Any]
    runs: dict[str, Run] = field(default_factory=dict)

    def parts(self, count: int) -> list[tuple[str, slice]]:
        """The domains' answers, each cut into `count` parts about as long."""
        found, first = [], 0
        for name, answers in self.domains:
            ends = np.linspace(first, first + answers, min(count, answers) + 1).round().astype(int)
            found += [(name, slice(*map(int, pair))) for pair in pairwise(ends)]
            first += answers
        return found


def measure_online(
    pipe: Any,
    config: SpecConfig,
    domains: Sequence[Domain],
    call: dict[str, Any],
    seed: int = 0,
    lessons: Lessons | None = None,
    progress: Callable[[int], None] = lambda answers: None,
) -> OnlineRecord:
    """Answer all prompts, one at a time, by each drafter; the head is left as it was.

    The first prompt is answered once before, so that what is built once counts for no drafter of
    the head. The table would learn from it, and builds its own.

    Args:
        pipe: a pipeline of answers.
        config: a method with one of its heads.
        call: other arguments of every pipeline call; answer i has seed `seed + i`.
        progress: told how many answers are done since it was last told.

    Raises:
        InputError: the pipeline has no such head.
    """
    lessons = lessons or Lessons()
    heads = pipe.heads or {}
    if config.method not in heads:
        known = ", ".join(sorted(heads)) or "none"
        text = f"the model has no head {config.method!r} that could learn, only {known}"
        raise InputError(text)
    asked = [prompt for domain in domains for prompt in domain.asked]
    record = OnlineRecord(
        pipe.model.name_or_path.rstrip("/").rpartition("/")[2] or type(pipe.model).__name__,
        config.method,
        [(domain.name, len(domain.asked)) for domain in domains],
        float(call.get("temperature", 0.0)),
        seed,
        lessons,
        environment(pipe.device),
    )
    with _as_it_was(pipe, heads[config.method]):
        pipe.enable_speculation(config)
        _answer(pipe, Run(config.method), asked[0], call, seed, None, lessons)
    first: list[list[int]] = []
    for name, how in ((FROZEN, config), (LEARNING, config), (TABLE, SCEPTIC)):
        learner = None
        with _as_it_was(pipe, heads[config.method]):
            pipe.enable_speculation(how)
            if name == LEARNING:
                head = heads[config.method]
                told = lessons.rate, lessons.objective
                learner = OnlineLearner(pipe.model, head, *told, fallen=lessons.fallen)
            run = record.runs[name] = Run(how.method)
            for number, prompt in enumerate(asked):
                tokens = _answer(pipe, run, prompt, call, seed + number, learner, lessons)
                if name == FROZEN:
                    first.append(tokens)
                run.same += tokens == first[number]
                progress(1)
    return record


def _answer(
    pipe: Any,
    run: Run,
    prompt: dict[str, Any],
    call: dict[str, Any],
    seed: int,
    learner: OnlineLearner | None,
    lessons: Lessons,
) -> list[int]:
    """Give one answer, and learn behind it where it is time; returns its tokens."""
    pipe.listener = learner
    began = time.perf_counter()
    out = pipe(**prompt, **call, generator=torch.Generator().manual_seed(seed))
    run.seconds.append(time.perf_counter() - began)
    for name in ("emitted", "calls", "drafted", "accepted"):
        getattr(run, name).append(getattr(out.stats, name)[0])
    began = time.perf_counter()
    if learner is not None and learner.heard % lessons.every == 0:
        learner.learn(lessons.steps, lessons.every)
    run.learning.append(time.perf_counter() - began)
    tokens: list[int] = out.tokens[0]
    return tokens


@contextmanager
def _as_it_was(pipe: Any, head: Any) -> Iterator[None]:
    """Leave the pipeline, and the head's weights, as they were."""
    before, weights = pipe.speculation, copy.deepcopy(head.state_dict())
    listener = pipe.listener
    try:
        yield
    finally:
        head.load_state_dict(weights)
        pipe.listener = listener
        pipe.enable_speculation(before)
