"""What a report tells beside its figures: which verdicts are open, and what would close them."""

from __future__ import annotations

from types import SimpleNamespace

from mmspec.eval.run.summary import _undecided
from mmspec.eval.schema import MethodResult
from mmspec.eval.schema_parts import Quality


def row(n: int, difference: tuple[float, float] | None, verdict: str = "undecided") -> MethodResult:
    found = Quality(0.7, None, difference_ci95=difference, verdict=verdict)
    return MethodResult("lossy", n, 1.0, 1.0, 1.0, [], {}, quality={"geneval": found})


def test_open_verdicts_are_told_in_a_line_for_each_number_of_samples():
    job = SimpleNamespace(suite=SimpleNamespace(metrics=["geneval"], margin=0.01))
    rows = {
        "scd": row(100, (-0.04, 0.04)),  # four times as wide as it may be
        "gsd": row(100, (-0.02, 0.02)),
        "sjd": row(100, (0.0, 0.1), "no loss"),
        "more": row(400, (-0.04, 0.04)),
        "few": row(2, None),
    }
    line = "{} samples can't tell a loss of geneval above 0.01 from a smaller one; about so many"
    assert _undecided(job, rows) == [
        f"{line.format(100)} would (--max-samples): scd (1600), gsd (400)",
        f"{line.format(400)} would (--max-samples): more (6400)",
        "few: too few samples for an interval of geneval",
    ]
    job.suite.margin = None
    assert _undecided(job, rows) == []
