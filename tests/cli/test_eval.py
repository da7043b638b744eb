"""`mmspec eval`: what it writes and prints, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from mmspec.eval.schema import MethodResult, Report
from mmspec.eval.suite import suite_names

# of a method's row in report.json, as the issue names them
ROW = [
    "contract",
    "n",
    "nfe_per_sample",
    "target_tokens_per_sample",
    "mean_acceptance_length",
    "acceptance_by_position",
    "seconds_median",
    "speedup_median",
    "speedup_ci95",
    "ideal_speedup",
    "engine_efficiency",
]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_eval_run(evaluate, tmp_path):
    code, out, _ = evaluate("--methods", "plain,draft,sjd", "--limit", "2")
    assert code == 0
    written = ["report.html", "report.json", "report.md", "run.json", "samples.jsonl"]  # no quality
    assert names(tmp_path / "out") == written
    data = json.loads((tmp_path / "out" / "report.json").read_text())
    assert list(data["methods"]) == ["plain", "draft", "sjd"]
    for name, row in data["methods"].items():
        assert set(ROW) <= row.keys() == {field.name for field in fields(MethodResult)}
        assert (row["contract"], row["n"]) == ("exact", 2)
        emitted = row["mean_acceptance_length"] * row["nfe_per_sample"]
        assert emitted == pytest.approx(16)
        assert row["target_tokens_per_sample"] >= row["nfe_per_sample"]
        assert all(0 <= share <= 1 for share in row["acceptance_by_position"])
        assert row["seconds_median"] >= row["decode_seconds_median"] > 0
        assert row["ideal_speedup"] > 0
        measured = 1.0 if name == "plain" else row["speedup_median"]
        assert row["engine_efficiency"] == pytest.approx(measured / row["ideal_speedup"])
        if name == "plain":
            assert row["speedup_median"] is row["speedup_ci95"] is None
            assert row["acceptance_by_position"] == []
        else:
            assert row["speedup_median"] > 0
            assert row["speedup_ci95"] is None  # two pairs prove nothing
    report = Report.read(tmp_path / "out" / "report.json")
    assert report.settings["speed_prompts"] == 2
    assert not report.for_reporting
    lines = (tmp_path / "out" / "samples.jsonl").read_text().splitlines()
    samples = [line for line in map(json.loads, lines) if line["kind"] == "speed"]
    assert [sample["seed"] for sample in samples] == [0, 0, 0, 1, 1, 1]
    order = [sample["method"] for sample in samples]
    assert sorted(order[:3]) == sorted(order[3:]) == ["draft", "plain", "sjd"]
    assert order[:3] != order[3:]  # they take turns
    assert [line.split()[0] for line in out.splitlines()[:4]] == ["method", *data["methods"]]


def test_eval_quality(run, tiny_folder, tmp_path):
    where = ("--model", tiny_folder, "-o", tmp_path / "out")
    command = ("eval", "run", "--suite", "geneval-shapes", "--methods", "sjd", "--limit", 6)
    code, out, _ = run(*command, *where)
    assert code == 0
    report = Report.read(tmp_path / "out" / "report.json")
    for row in report.methods.values():
        assert row.n == 6
        assert row.speedup_median is row.seconds_median is None
        assert 0 <= row.quality["geneval"].value <= 1
    assert any("too few samples" in note for note in report.notes)
    assert 0 < report.target_entropy < np.log(128)
    samples = (tmp_path / "out" / "samples.jsonl").read_text().splitlines()
    verdicts = [line for line in map(json.loads, samples) if line["kind"] == "quality"]
    assert len(verdicts) == 12
    assert all((line["scores"]["geneval"] == 1) == (line["reason"] == "") for line in verdicts)
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["plain", "sjd"]


def test_eval_adds_the_baseline_and_prints_json(evaluate, tmp_path):
    code, out, _ = evaluate("--methods", "sjd", "--limit", 1, "--size", 16, "--json")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "out" / "report.json").read_text())
    assert list(json.loads(out)["methods"]) == ["plain", "sjd"]
    assert json.loads(out)["methods"]["plain"]["nfe_per_sample"] == 4


def test_a_limit_over_a_longer_run_is_told(evaluate, tmp_path):
    """What is there counts, and no pictures are spoken of where none were drawn."""
    plain = ("--methods", "plain", "--size", 16)
    code, out, _ = evaluate(*plain, "--limit", 4)
    assert code == 0
    last = out.splitlines()[-1]
    where = tmp_path / "out"
    assert last == f"report.html, report.md, report.json and samples.jsonl are in {where}/"
    code, out, _ = evaluate(*plain, "--limit", 2)
    assert code == 0
    assert Report.read(where).methods["plain"].n_speed == 4
    assert "note: the folder held 4 samples already: all of them count, and --limit 2 drops" in out


def test_reports_are_drawn_again_and_compared(evaluate, run, tmp_path, refused):
    assert evaluate("--methods", "sjd", "--limit", 2, "--size", 16)[0] == 0
    out = tmp_path / "out"
    before = {name: (out / name).read_bytes() for name in ("report.html", "report.md")}
    for name in before:
        (out / name).unlink()
    code, text, _ = run("eval", "report", out)
    assert code == 0
    assert {name: (out / name).read_bytes() for name in before} == before
    assert "report.html" in text
    code, text, _ = run("eval", "compare", out, out, "--json")
    assert code == 0
    rows = json.loads(text)["rows"]
    assert {row["method_a"] for row in rows} == {"plain", "sjd"}
    assert all((row["n"], row["ratio"], row["p"]) == (2, 1, 1) for row in rows)
    assert (
        len(json.loads(run("eval", "compare", out, out, "--methods", "plain:sjd", "--json")[1]))
        == 2
    )
    refused(run("eval", "report", tmp_path / "nothing"), "nothing")
    refused(run("eval", "compare", out, tmp_path / "nothing"), "nothing")


def test_validate(run, tmp_path, refused):
    code, out, err = run("eval", "validate")
    assert (code, err) == (0, "")
    assert [line.partition(":")[0] for line in out.splitlines()] == suite_names()
    (tmp_path / "mine.yaml").write_text("summary: s\nsource: prompts\nspeed: x\n")
    said = "speed: input should be a valid integer, not 'x'"
    refused(run("eval", "validate", tmp_path / "mine.yaml"), said)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--limit", "0"], ["--limit", "0"]),
        (["--limit", "-2"], ["--limit", "-2"]),
        (["--limit", "all"], ["--limit", "'all'"]),
        (["--methods", "plain,sdj"], ["did you mean 'sjd'"]),
        (["--methods", " , "], ["--methods"]),
        (["--methods", "sjd[windw=4]"], ["setting of sjd", "did you mean 'window'"]),
        (["--methods", "sjd[window=0],plain"], ["sjd[window=0]: window", "from 1 to 256"]),
        (["--sweep", "draft"], ["draft has no knob", "sjd (window)"]),
        (["--suite", "sped"], ["did you mean 'speed'"]),
        (["--pipeline", "imag"], ["did you mean 'image'"]),
        (["--size", "7", "--limit", "1"], ["multiple of 8"]),
        (["--size", "64", "--limit", "1"], ["64×64"]),
        (["--seed", "-1", "--limit", "1"], ["--seed"]),
        (["--device", "gpu"], ["device 'gpu'"]),
        (["--max-samples", "0"], ["--max-samples", "0"]),
        (["--batch-sizes", "1,x"], ["--batch-sizes", "1,x"]),
        (["--batch-sizes", "0"], ["--batch-sizes", "0"]),
        (["--executor", "rai"], ["did you mean 'ray'"]),
        (["--workers", "2"], ["--executor ray"]),
        (["--metrics", "genval"], ["did you mean 'geneval'"]),
        (["--metrics", "fid"], ["--reference FOLDER"]),
        (["--reference", "."], ["--reference is nothing that suite", "leave it out"]),
        (["--prompts", "nothing.jsonl"], ["nothing.jsonl"]),
        (["--weights", "clip"], ["NAME=PATH"]),
    ],
    ids=str,
)
def test_eval_refuses(evaluate, tmp_path, options, parts, refused):
    refused(evaluate(*options), *parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("suite", "more", "said"),
    [
        ("vqav2", ["--limit", 3], "--limit is for outputs that a pipeline makes"),
        ("vqav2", ["--methods", "plain"], "--methods is for outputs that a pipeline makes"),
        ("vqav2", ["--model", "embedded-vlm"], "--model is for outputs that a pipeline makes"),
        ("vqav2", ["--captions", "c.jsonl"], "--captions is nothing that vqav2 reads"),
        ("chartqa", ["--annotations", "a.json"], "--annotations is nothing that chartqa reads"),
        ("chartqa", ["--background", "black"], "--background is nothing that chartqa reads"),
        ("image-folders", ["--metrics", "fid"], "--questions is nothing that fid reads"),
        ("vlm-questions", [], "--questions is for files that are scored"),
    ],
)
def test_options_that_would_do_nothing_are_refused(run, tmp_path, suite, more, said):
    files = ["--questions", "q.json", "--predictions", "p.jsonl", "-o", tmp_path / "out"]
    code, out, err = run("eval", "run", "--suite", suite, *files, *more)
    assert (code, out) == (2, "")
    assert said in err
    assert not (tmp_path / "out").exists()
