"""The bench on variants that only say who was asked: turns, seeds, warm-up, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from mmspec.engine.stats import SpecStats
from mmspec.eval.data.picture_questions import PictureQuestion
from mmspec.eval.modalities.bench import Bench
from mmspec.eval.run.job import Job, Unit
from mmspec.eval.suite import Suite
from mmspec.eval.sweeps import parse_methods
from mmspec.eval.variants import AGAIN, SHIFT, RefusedError, label


class Told(Bench):
    """Outputs are the names of their rows; `draft` is refused where chance decides."""

    def __init__(self, job: Job, judges_timed: bool) -> None:
        super().__init__(job, SimpleNamespace(device=torch.device("cpu")))
        self.judges_timed, self.log, self.made = judges_timed, [], []

    def make_variant(self, name):
        self.made.append(name)

        def prepare(inputs, seeds, call):
            def run():
                if name == "draft" and call["temperature"]:
                    raise RefusedError("not by chance")
                self.log.append((name, call["temperature"], inputs, list(seeds)))
                ones = [1] * len(inputs)
                stats = SpecStats(name, calls=ones, emitted=ones)
                return SimpleNamespace(stats=stats, name=name)

            return run

        return SimpleNamespace(prepare=prepare)

    def inputs(self, indices):
        return list(indices)

    def judged(self, items, out):
        return [({"accuracy": float(item.tag == "right")}, "") for item in items]

    def shown(self, outcome, name, row, inputs, out):
        outcome.files[f"{name}/{inputs[row]}"] = b""
        return {"text": out.name}


def job(**fields) -> Job:
    calls = {"greedy": {"temperature": 0}, "sampled": {"temperature": 1}}
    suite = Suite("s", "s", "prompts", ("accuracy",), "vlm", speed=2, calls=calls)
    for name, value in fields.items():
        object.__setattr__(suite, name, value)
    items = tuple(PictureQuestion(f"q{n}", "right" if n else "") for n in range(3))
    return Job(suite, items, parse_methods(("draft", "prompt-lookup")), {}, seed=10)


def test_rows_take_turns_within_each_way_to_call():
    bench = Told(job(), judges_timed=True)
    bench.run(Unit("speed", 0))
    warm, bench.log = bench.log, []
    assert len(warm) == 2 * 5  # once more, before the first that counts
    outcome = bench.run(Unit("speed", 1))
    assert [call[:2] for call in bench.log] == [
        *(("draft", 0), ("prompt-lookup", 0), ("plain", 0)),
        *(("prompt-lookup", 1), ("plain", 1)),
    ]
    assert {(*call[2], *call[3]) for call in bench.log} == {(1, 11)}
    assert sorted(bench.made) == ["draft", "plain", "prompt-lookup"]  # one for both ways to call
    kinds = [(line["kind"], line["method"]) for line in outcome.lines]
    assert ("refused", "draft@sampled") in kinds
    rows = [f"{name}@greedy" for name in ("draft", "prompt-lookup", "plain")]
    rows += ["prompt-lookup@sampled", "plain@sampled"]
    for kind in ("speed", "quality"):
        assert [row for found, row in kinds if found == kind] == rows
    assert len(kinds) == 2 * len(rows) + 1
    told = {line["method"]: line for line in outcome.lines if line["kind"] == "quality"}
    assert told["plain@greedy"]["scores"] == {"accuracy": 1.0}
    assert told["plain@greedy"]["text"] == "plain"
    assert set(outcome.files) == {f"{row}/1" for row in rows}


def test_a_batch_is_judged_and_counted():
    calls = {"calls": {}, "quality": 3, "call": {"temperature": 0}}
    bench = Told(job(**calls), judges_timed=False)
    bench.job.call["temperature"] = 0
    outcome = bench.run(Unit("quality", 1, 2, "draft"))
    assert [(x["kind"], x.get("index"), x.get("seed")) for x in outcome.lines] == [
        *(("quality", 1, 11), ("quality", 2, 12), ("counts", None, None)),
    ]
    assert outcome.lines[-1]["stats"]["calls"] == [1, 1]
    kinds = [line["kind"] for line in bench.run(Unit("speed", 0, 2)).lines]
    assert kinds == ["speed"] * 3  # nobody judges them


def test_a_row_that_is_refused_is_not_judged():
    bench = Told(job(calls={}, quality=3), judges_timed=False)
    bench.job.call["temperature"] = 1
    (line,) = bench.run(Unit("quality", 1, 2, "draft")).lines
    assert line == {"kind": "refused", "method": "draft", "reason": "not by chance"}


def test_other_seeds_are_the_rows_own():
    bench = Told(job(calls={}, again=True, quality=3), judges_timed=False)
    bench.job.call["temperature"] = 0
    assert bench.job.rows == ["plain", "draft", "prompt-lookup"]  # of questions none is asked again
    bench.run(Unit("quality", 0, 2, AGAIN))
    assert bench.log[-1][3] == [10 + SHIFT, 11 + SHIFT]


@pytest.mark.parametrize(
    ("name", "role", "family", "call"),
    [
        ("plain@greedy", "baseline", "plain@greedy", "greedy"),
        ("draft@sampled", "method", "draft@sampled", "sampled"),
        (AGAIN, "again", AGAIN, ""),
        ("plain:few", "sceptic", "plain:few", ""),
    ],
)
def test_labels(name, role, family, call):
    from mmspec.eval.schema import MethodResult

    row = MethodResult("exact", 1, 1.0, 1.0, 1.0, [], {})
    label(job(), name, row)
    assert (row.role, row.family, row.call) == (role, family, call)
    assert row.contract == ("lossy" if role == "sceptic" else "exact")
