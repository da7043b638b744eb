"""Speed of the plain loop over that of transformers' `generate`, paired in one process."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from mmspec.devices import wait
from mmspec.errors import InputError
from mmspec.eval.environment import environment
from mmspec.eval.measure.bootstrap import known_interval
from mmspec.eval.measure.timing import rotated
from mmspec.eval.report.format import fixed, interval
from mmspec.eval.report.table import Cell, Row, Table

from .embedded import EMBEDDED
from .families import FAMILIES
from .sizes import MODELS, Form, fitting
from .subjects import Cache, Subject

OURS = "plain"
CACHES: tuple[Cache, ...] = get_args(Cache)
DEFAULT = ("llamagen", "janus", "emu3", "glm-image", *EMBEDDED)


@dataclass
class Against:
    """The `generate` of transformers with a cache: its seconds, over ours, pair by pair."""

    seconds: float
    ratio: float
    ratio_ci95: tuple[float, float] | None


@dataclass
class PlainRow:
    """A model in a batch.

    Attributes:
        weights: which they are: random ones show time and nothing else.
        rows: of the batch; `guided` ones have a twin without the prompt each.
        tokens: of a row.
        same: transformers computes the same network, and not only the same work.
        seconds: of a whole call of mmspec's plain loop, the middle one.
    """

    model: str
    weights: str
    rows: int
    tokens: int
    guided: bool
    same: bool
    seconds: float
    against: dict[str, Against] = field(default_factory=dict)


@dataclass
class PlainRecord:
    """A run: its machine, pairs by row, and what was found."""

    environment: dict[str, Any]
    samples: int
    rows: list[PlainRow] = field(default_factory=list)


def subjects(
    names: Sequence[str], side: int, memory: float, device: str
) -> Iterator[tuple[str, str, Subject]]:
    """Name, weights and subject of every model, one after the other: one is in memory at a time.

    Args:
        names: of `MODELS` and of `EMBEDDED`.
        side: of the pictures of published models, in codes.
        memory: that a model's weights may take, in GiB.
    """
    for name in names:
        if name in EMBEDDED:
            yield name, "embedded", EMBEDDED[name](device)
        else:
            form = form_of(name, side, memory)
            yield name, described(name, form), build(name, side, form, device)
        gc.collect()


def form_of(name: str, side: int, memory: float) -> Form:
    """The depth and dtype of a published model that fit into so many GiB.

    Raises:
        InputError: none does.
    """
    model = MODELS[name]
    network = FAMILIES[model.family].network
    return fitting(name, model, lambda layers: network(model, layers, side), memory * 2**30)


def build(name: str, side: int, form: Form, device: str) -> Subject:
    """A published model with random weights."""
    family = FAMILIES[MODELS[name].family]
    with torch.random.fork_rng(), made_in(form.dtype):
        torch.manual_seed(0)
        network = family.network(MODELS[name], form.layers, side).to(device)
        return family.subject(network, side)


def described(name: str, form: Form) -> str:
    """A line that says what a published model became."""
    model, dtype = MODELS[name], str(form.dtype).removeprefix("torch.")
    depth = f"{form.layers} of {model.layers} layers"
    return f"random, {model.checkpoint}, {depth} ({form.share} of the depth), {dtype}"


@contextmanager
def made_in(dtype: torch.dtype) -> Iterator[None]:
    """Surround the making of networks whose weights are to have a dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def measure(
    name: str,
    weights: str,
    subject: Subject,
    rows: int,
    samples: int,
    update: Callable[[], object] = lambda: None,
) -> PlainRow:
    """Time a model in a batch of `rows`: sides take turns, after a call each that doesn't count.

    Raises:
        InputError: the sides made another number of tokens.
    """
    sides: dict[str, Callable[[int], Tensor]] = {OURS: partial(subject.ours, rows)}
    for cache in CACHES:
        sides[cache] = partial(_theirs, subject, rows, cache)
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    shapes = set()
    for sample in range(-1, samples):
        for side in rotated(sides, sample):
            wait(subject.device)
            started = time.perf_counter()
            tokens = sides[side](max(sample, 0))
            wait(subject.device)
            if sample >= 0:
                seconds[side].append(time.perf_counter() - started)
            shapes.add(tuple(tokens.shape))
            update()
    if len(shapes) > 1:
        raise InputError(f"{name}: the sides made tokens of shapes {sorted(shapes)}")
    _, count = shapes.pop()
    ours = seconds.pop(OURS)
    row = PlainRow(
        name, weights, rows, count, subject.guided, subject.same, statistics.median(ours)
    )
    for side, theirs in seconds.items():
        ratios = [t / o for t, o in zip(theirs, ours, strict=True)]
        row.against[side] = Against(statistics.median(theirs), *median_interval(ratios))
    return row


def _theirs(subject: Subject, rows: int, cache: Cache, seed: int) -> Tensor:
    torch.manual_seed(seed)
    return subject.theirs(rows, cache)


def median_interval(ratios: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Median of paired ratios and its 95 % interval, None of too few."""
    values = np.asarray(ratios)
    spread = known_interval(lambda i: np.asarray(np.median(values[i], axis=1)), len(values))
    return float(np.median(values)), spread


def measure_plain(
    names: Sequence[str],
    batches: Sequence[int],
    samples: int,
    side: int,
    memory: float,
    device: str = "cpu",
    update: Callable[[], object] = lambda: None,
) -> PlainRecord:
    """Measure models in batches of several sizes.

    Args:
        names, side, memory: see `subjects`.
        samples: pairs of each.
        update: called after every call.
    """
    record = PlainRecord(environment(torch.device(device)), samples)
    for name, weights, subject in subjects(names, side, memory, device):
        for rows in batches:
            record.rows.append(measure(name, weights, subject, rows, samples, update))
    return record


def plain_table(record: PlainRecord) -> Table:
    """A row a model and batch; seconds of a call, and transformers' over ours."""
    rows = []
    for row in record.rows:
        pair = " (pairs)" if row.guided else ""
        cells = [Cell(f"{row.rows}{pair}"), Cell(str(row.tokens)), Cell(f"{row.seconds:.3g}")]
        for found in row.against.values():
            cells.append(Cell(f"{found.seconds:.3g}"))
            cells.append(Cell(fixed(found.ratio, 2, unit="×"), interval(found.ratio_ci95, 2)))
        rows.append(Row(row.model, tuple(cells)))
    sides = [f"{cache}, {what}" for cache in CACHES for what in ("s", "over plain")]
    return Table(
        f"Whole calls of `generate` over the plain loop's: {record.samples} pairs each, medians.",
        ("model", "rows", "tokens", "plain, s", *sides),
        tuple(rows),
    )


def plain_notes(record: PlainRecord) -> list[str]:
    """Notes that a reader needs: which weights, and which networks differ."""
    notes = [f"{name}: {text}" for name, text in {r.model: r.weights for r in record.rows}.items()]
    other = sorted({row.model for row in record.rows if not row.same})
    if other:
        notes.append(
            f"{', '.join(other)}: transformers runs a Llama of the same weights, whose positions "
            "are on a line and whose guidance pairs are rows of their own: equal work, other tokens"
        )
    return notes
