"""The report's form: written whole, read back equal, anything else refused."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, fields, replace

import pytest
import torch

from mmspec.errors import InputError
from mmspec.eval.environment import environment
from mmspec.eval.report.pages import to_markdown
from mmspec.eval.schema import VERSION, MethodResult, Report
from mmspec.eval.schema_parts import EqualShare, Quality, Throughput


def result(**given) -> MethodResult:
    fields = dict(
        contract="exact",
        n=3,
        nfe_per_sample=16.0,
        target_tokens_per_sample=16.0,
        mean_acceptance_length=1.0,
        acceptance_by_position=[],
        phase_seconds={"target": 0.4},
    )
    return MethodResult(**{**fields, **given})


@pytest.fixture
def report() -> Report:
    sjd = result(
        acceptance_by_position=[0.9, 0.5],
        speedup_median=1.5,
        speedup_ci95=(1.25, 1.75),
        tv_per_step=(0.0, 1e-16),
        throughput={8: Throughput(3, 100.0, 0.9, (0.8, 1.0)), 16: Throughput(1, 120.0)},
        quality={"geneval": Quality(0.5, (0.4, 0.6), -0.1, (-0.2, 0.1), parts={"colors": 1.0})},
    )
    methods = {"plain": result(role="baseline"), "sjd": sjd}
    costs = {"target": {1: 0.001, 17: 0.002}}
    machine = environment(torch.device("cpu"))
    return Report(
        "speed", "image", "m", "mmspec", {"seed": 0}, machine, 2.5, costs, methods, ["note"]
    )


def test_report_round_trip(report, tmp_path):
    path = report.write(tmp_path / "a" / "b")
    assert path == tmp_path / "a" / "b" / "report.json"
    assert Report.read(path) == Report.read(path.parent) == report
    assert [file.name for file in path.parent.iterdir()] == ["report.json"]
    assert json.loads(path.read_text())["version"] == VERSION


def test_a_report_from_before_there_were_families(report, tmp_path):
    path = report.write(tmp_path)
    data = json.loads(path.read_text())
    for row in data["methods"].values():
        for name in ("family", "knob", "knob_value"):
            del row[name]
    path.write_text(json.dumps(data))
    assert Report.read(path) == report


def test_a_report_from_before_rows_were_mixed_themselves(report, tmp_path):
    shares = {"random": EqualShare(0.1, (0.0, 0.2), ["plain", "a"], 0.5)}
    report.methods["sjd"] = result(at_equal_share=shares)
    path = report.write(tmp_path)
    data = json.loads(path.read_text())
    del data["methods"]["sjd"]["at_equal_share"]["random"]["against"]
    path.write_text(json.dumps(data))
    assert Report.read(path) == report


def test_a_failed_write_leaves_the_old_report(report, tmp_path):
    path = report.write(tmp_path)
    with pytest.raises(TypeError):
        replace(report, settings={"seed": object()}).write(tmp_path)
    assert Report.read(path) == report


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version=1), "version"),
        (lambda d: d.pop("version"), "version"),
        (lambda d: d.pop("environment"), "environment"),
        (lambda d: d.update(mood="good"), "mood"),
        (lambda d: d.update(methods=[]), "not a report"),
        (lambda d: d["methods"]["sjd"].pop("n"), "methods.sjd.n: field required"),
        (lambda d: d["methods"]["sjd"].update(speed=2), "methods.sjd.speed: unexpected"),
        (lambda d: d["methods"].update(sjd=3), "methods.sjd: input should be an object"),
        (
            lambda d: d["methods"]["sjd"]["quality"].update(fid=2),
            "quality.fid: input should",
        ),
        (
            lambda d: d["methods"]["sjd"]["quality"]["geneval"].pop("value"),
            "geneval.value: field",
        ),
        (
            lambda d: d["methods"]["sjd"]["throughput"]["8"].pop("n"),
            "throughput.8.n: field",
        ),
        (
            lambda d: d["methods"]["sjd"].update(n="3"),
            "sjd.n: input .* integer, not '3'",
        ),
        (
            lambda d: d["methods"]["sjd"].update(nfe_per_sample=None),
            "nfe_per_sample: input should be a valid number, not None",
        ),
        (
            lambda d: d["methods"]["sjd"].update(seconds_median=float("nan")),
            "finite number, not nan",
        ),
        (lambda d: d["methods"]["sjd"].update(speedup_ci95=[1]), "speedup_ci95.1: field required"),
        (
            lambda d: d["methods"]["sjd"].update(phase_seconds=[]),
            "phase_seconds: input should",
        ),
        (
            lambda d: d["methods"]["sjd"]["quality"]["geneval"].update(value="high"),
            "geneval.value: input should be a valid number",
        ),
        (lambda d: d.update(notes="none"), "notes: input should be a valid array, not 'none'"),
        (lambda d: d.update(suite=None), "suite: input should be a valid string, not None"),
        (lambda d: d.update(for_reporting=1), "for_reporting: input should be a valid boolean"),
    ],
)
def test_reports_of_another_shape(report, tmp_path, change, message):
    data = json.loads(json.dumps(asdict(report)))
    change(data)
    (tmp_path / "report.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=message):
        Report.read(tmp_path)


def required(kind: type) -> set[str]:
    """Names of the fields that a form asks for."""
    return {one.name for one in fields(kind) if one.default is one.default_factory is MISSING}


def test_a_report_of_an_earlier_run_is_read_and_drawn(report, tmp_path):
    """A report holds what its run knew; what it does not tell is not shown."""
    report.date, report.methods["sjd"].seconds_p95 = "2031-02-03T04:05:06+00:00", 2.75
    path = report.write(tmp_path)
    told = to_markdown(report)
    data = json.loads(path.read_text())
    kept = required(Report) | {"version"}
    data = {name: value for name, value in data.items() if name in kept}
    for name, row in data["methods"].items():
        data["methods"][name] = {key: row[key] for key in required(MethodResult)}
    path.write_text(json.dumps(data))
    earlier = Report.read(path)
    assert earlier.date is None
    assert earlier.methods["sjd"].seconds_p95 is None
    page = to_markdown(earlier)
    assert report.suite in page
    for later in ("p95", "UTC"):
        assert later in told
        assert later not in page


def test_a_report_is_json(report, tmp_path):
    """A figure that does not exist is null."""
    report.methods["sjd"].ideal_speedup = float("nan")

    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(report.write(tmp_path).read_text(), parse_constant=refuse)
    assert Report.read(tmp_path).methods["sjd"].ideal_speedup is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", None])
def test_no_reports(tmp_path, text):
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    with pytest.raises(InputError, match=r"report\.json"):
        Report.read(tmp_path)
