"""Models that the server runs: answers of a chat, and pictures."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from PIL import Image

from ..engine.draft import Context
from ..engine.stats import SpecStats
from ..models.transformers.prompted import most_positions
from ..pipelines.load_switch import any_sample
from ..pipelines.output import VlmStats
from .jobs import Job, News
from .metrics import Metrics
from .requests import ServeLimits
from .running_text import RunningText

Answered = tuple[Job, int]  # a job, and the number of its answer or picture
LOOK = 0.25  # seconds between looks at who still waits


class ChatRunner:
    """A `TextPipeline` or a `VlmPipeline` that answers batches of conversations.

    Args:
        pipe: with its speculation set.
        metrics: hears of first tokens.
        limits: of answers; where a request names no length, half of the model's context at most,
            and no more than its prompt leaves.
    """

    def __init__(self, pipe: Any, metrics: Metrics, limits: ServeLimits) -> None:
        self.pipe, self.metrics = pipe, metrics
        self._places = most_positions(pipe.model.config.get_text_config())
        usual = limits.tokens if self._places is None else min(limits.tokens, self._places // 2)
        self._usual = max(1, usual)

    def run(self, jobs: Sequence[Job]) -> None:
        rows = _rows(jobs)
        usual = self._usual if len(jobs) > 1 else self._left(jobs[0])
        lines = [self._line(job, usual) for job, _ in rows]
        first = jobs[0].asked
        begun: set[int] = set()

        def end(job: Job, stats: VlmStats) -> None:
            """Tell how a job ended, as soon as it did: others of the batch may write on."""
            own = [n for n, (other, _) in enumerate(rows) if other is job]
            if job.idle and any(lines[n].finish is None for n in own):
                job.fail(*job.cut)
                return
            for n in own:
                _tell(job, rows[n][1], lines[n].close())
                job.say(News("finish", rows[n][1], lines[n].finish))
            written = [len(lines[n].tokens) for n in own]
            _end(job, stats, own, written, stats.prompt_tokens[own[0]])

        def hear(number: int, tokens: list[int], stats: VlmStats) -> bool:
            """Take in what a row wrote; True: it is over."""
            job, choice = rows[number]
            line = lines[number]
            if not job.idle and line.finish is None:
                _tell(job, choice, line.add(tokens))
                if id(job) not in begun:
                    begun.add(id(job))
                    self.metrics.began(job.model, time.monotonic() - job.arrived)
            mine = (own for own, (other, _) in zip(lines, rows, strict=True) if other is job)
            if not job.over and (job.idle or all(own.finish is not None for own in mine)):
                end(job, stats)
            return job.idle or line.finish is not None

        with _free(jobs):
            out = self.pipe(
                [job.asked.messages for job, _ in rows],
                max_new_tokens=max(line.limit for line in lines),
                temperature=first.temperature,
                top_k=first.top_k,
                top_p=first.top_p,
                generator=_generators(rows),
                callback_on_step_end=_watching(hear),
            )
        for job in jobs:
            if not job.over:
                end(job, out.stats)

    def _left(self, job: Job) -> int:
        """Usual length of an answer to a job that runs alone, as those too long for a batch do."""
        if self._places is None or job.asked.limit is not None:
            return self._usual
        left = self._places - self.pipe.prompt_tokens(job.asked.messages)
        return max(1, min(self._usual, left))

    def _line(self, job: Job, usual: int) -> RunningText:
        ends = self.pipe.model.generation_config.eos_token_id
        several = [] if ends is None else [ends] if isinstance(ends, int) else ends
        limit = job.asked.limit or usual
        return RunningText(self.pipe.words, limit, several, job.asked.stops)


class PictureRunner:
    """A pipeline that draws from captions, of token ids or of vectors."""

    def __init__(self, pipe: Any, metrics: Metrics, limits: ServeLimits) -> None:
        self.pipe, self.metrics = pipe, metrics

    def run(self, jobs: Sequence[Job]) -> None:
        rows, first = _rows(jobs), jobs[0].asked
        own: dict[str, Any] = {}
        if first.sides is not None:
            own = dict(zip(("width", "height"), first.sides, strict=True))
        if first.guidance_scale is not None:
            own["guidance_scale"] = first.guidance_scale

        def after_round(pipe: Any, *_: Any) -> None:
            for job in jobs:
                if job.idle:
                    job.fail(*job.cut)
            pipe.interrupt = all(job.idle for job in jobs)

        with _free(jobs), _watched(self.pipe, jobs):
            out = self.pipe(
                [job.asked.prompt for job, _ in rows],
                generator=_generators(rows),
                callback_on_step_end=after_round,
                **own,
            )
        for job in jobs:
            mine = [n for n, (other, _) in enumerate(rows) if other is job]
            if job.idle:
                job.fail(*job.cut)
                continue
            self.metrics.began(job.model, time.monotonic() - job.arrived)
            for n in mine:
                job.say(News("picture", rows[n][1], _png(out.images[n])))
            _end(job, out.stats, mine, rows=len(rows))


@contextmanager
def _watched(pipe: Any, jobs: Sequence[Job]) -> Iterator[None]:
    """Stop a call within a round as well, once nobody waits: some methods have one round alone."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK):
            if all(job.idle for job in jobs):
                pipe.interrupt = True

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _free(jobs: Sequence[Job]) -> AbstractContextManager[None]:
    """Around a batch, let the pipeline choose how to draft, unless somebody keeps a seed."""
    return any_sample(all(job.asked.free for job in jobs))


def _rows(jobs: Sequence[Job]) -> list[Answered]:
    return [(job, choice) for job in jobs for choice in range(job.rows)]


def _generators(rows: Sequence[Answered]) -> list[torch.Generator]:
    """Chance of every row, its own seed's: a row does not depend on what runs beside it."""
    return [torch.Generator().manual_seed(job.seeds[choice]) for job, choice in rows]


def _tell(job: Job, choice: int, text: str) -> None:
    if text:
        job.say(News("text", choice, text))


def _end(
    job: Job,
    stats: SpecStats,
    mine: Sequence[int],
    written: Sequence[int] = (),
    prompt: int = 0,
    rows: int | None = None,
) -> None:
    """The last news: what a job's rows took; of vectors, which count otherwise, their share.

    Of answers, tokens behind a stop string or a row's own limit are none: nobody gets them.
    """
    counts = ("emitted", "calls", "drafted", "accepted")
    took = {}
    for name in counts:
        of = getattr(stats, name)
        apart = rows is None or len(of) == rows
        took[name] = sum(of[n] for n in mine) if apart else round(sum(of) * len(mine) / rows)
    if written:
        kept = zip(mine, written, strict=True)
        took["emitted"] = sum(min(stats.emitted[n], most) for n, most in kept)
    said = {"prompt": prompt, "written": sum(written), "method": stats.method, **took}
    job.say(News("usage", value=said))


def _png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def _watching(hear: Callable[[int, list[int], VlmStats], bool]) -> Callable[..., None]:
    """A callback that shows every row its new tokens, and ends rows that `hear` says are over."""
    read: dict[int, int] = {}

    def after_round(pipe: Any, number: int, done: int, state: dict[str, Any]) -> None:
        context: Context = state["context"]
        samples = context.samples or range(context.rows)
        for row, sample in enumerate(samples):
            end = context.base[row]
            tokens = context.tokens[row, read.get(sample, 0) : end].tolist()
            read[sample] = end
            if hear(sample, tokens, state["stats"]):
                context.finished[row] = True

    return after_round
