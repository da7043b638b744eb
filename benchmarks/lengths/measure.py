"""Acceptances along a pipeline's outputs, and what its rounds cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mmspec.errors import InputError
from mmspec.methods import SpecConfig
from mmspec.pipelines.notices import timed_apart

from ..simulation.recorded import Trace, recording
from .play import Recorded
from .rounds import RoundCost

_KEPT = 15  # largest probabilities of a law
_DEPTHS, _ROWS = (0, 1, 2, 4, 8), (1, 4, 16)  # of rounds that are timed
_FEWEST = 8  # rounds that a fit takes


def configs() -> dict[str, SpecConfig]:
    """Methods that are run, by name."""
    found = {name_of(n): SpecConfig("draft", num_draft_tokens=n) for n in _DEPTHS if n}
    return {"plain": SpecConfig("plain"), **found}


def name_of(depth: int) -> str:
    """Name of the method whose drafts have so many tokens."""
    return f"draft-{depth}" if depth else "plain"


def record(bench: Any, sample: int) -> Recorded:
    """Acceptances of the draft model along one output."""
    with recording() as trace:
        run(bench, name_of(1), range(sample, sample + 1))
    return told(trace)


def run(bench: Any, name: str, samples: range, **more: Any) -> Any:
    """Make outputs by a method of `configs`."""
    seeds = [bench.job.seed + n for n in samples]
    call = {**bench.job.call, **more}
    with timed_apart():
        return bench.variant(name).prepare(bench.inputs(samples), seeds, call)()


def told(trace: Trace) -> Recorded:
    """Acceptances and laws of a trace."""
    laws = []
    for law in trace.laws:
        top = law.topk(min(_KEPT, len(law))).values
        laws.append([*top.tolist(), max(0.0, float(law.sum() - top.sum()))])
    return Recorded([float(stands) for stands in trace.stands], laws)


def timed_rounds(
    bench: Any, done: Callable[[], object] = lambda: None
) -> list[tuple[int, int, float]]:
    """Rows, drafted tokens and seconds of rounds, of several lengths and batches.

    The first round of a call is left out, and so are the first calls, which are slow.
    """
    found: list[tuple[int, int, float]] = []
    for turn, rows in enumerate((1, *_ROWS)):
        for depth in _DEPTHS:
            rounds = _rounds(bench, name_of(depth), rows)
            found += rounds if turn else []
            done()
    return found


def steps() -> int:
    """Calls of `timed_rounds`."""
    return (1 + len(_ROWS)) * len(_DEPTHS)


def _rounds(bench: Any, name: str, rows: int) -> list[tuple[int, int, float]]:
    rounds, running = list[tuple[int, int, float]](), [rows]

    def heard(pipe: Any, number: int, done: int, state: dict[str, Any]) -> None:
        context, width = state["context"], state["stats"].rounds[-1]
        if number > 1:
            rounds.append((running[0], width, context.seconds))
        running[0] = context.finished.count(False)

    run(bench, name, range(rows), callback_on_step_end=heard)
    return rounds


def fitted(rounds: Sequence[tuple[int, int, float]]) -> RoundCost:
    """Costs by least squares; none is below 0.

    Raises:
        InputError: there are too few rounds.
    """
    if len(rounds) < _FEWEST:
        raise InputError("the outputs of these prompts are too short to time rounds; choose others")
    columns = np.array([[1, rows * (1 + w), w, w * rows] for rows, w, _ in rounds], dtype=float)
    seconds, kept = np.array([took for *_, took in rounds]), [0, 1, 2, 3]
    while True:
        found = np.linalg.lstsq(columns[:, kept], seconds, rcond=None)[0]
        if (found >= 0).all() or len(kept) == 1:
            break
        kept.pop(int(found.argmin()))
    costs = np.zeros(4)
    costs[kept] = found.clip(0)
    return RoundCost(*map(float, costs))
