"""Whole runs of vision-language suites on the tiny model: what is measured, kept and written."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.eval.modalities.base import MODALITIES
from mmspec.eval.modalities.vlm.experts import check_experts
from mmspec.eval.run.executor import Worker
from mmspec.eval.run.job import Job, Plan
from mmspec.eval.run.runner import run_suite
from mmspec.eval.schema import Report
from mmspec.eval.suite import load_suite
from mmspec.eval.sweeps import parse_methods

METHODS = ("draft", "prompt-lookup", "specvlm", "drafter-only")
PEERS = [f"transformers:{n}" for n in ("plain", "assisted", "assisted-default", "prompt-lookup")]
ARMS = ["plain", *METHODS, "draft:blank", "specvlm:blank", *PEERS]
TIMES = ("seconds", "decode_seconds", "phase_seconds", "peak_memory", "energy", "environment")
QUESTIONS = """
summary: s
source: prompts
pipeline: vlm
prompts: [vlm-questions.jsonl, vlm-descriptions.jsonl]
metrics: [accuracy, truthfulness, coverage]
quality: 705
margin: 0.02
call: {max_new_tokens: 8, temperature: 0.0}
verdict: true
"""


@pytest.fixture(scope="module")
def job(folder) -> Job:
    suite = load_suite("vlm")
    call = {"max_new_tokens": 10}
    prompts = MODALITIES["vlm"].items(suite, None)
    threads = torch.get_num_threads()
    configs = parse_methods(METHODS)
    return Job(suite, prompts, configs, call, model=str(folder), threads=threads)


@pytest.fixture(scope="module")
def finished(job, tmp_path_factory) -> Path:
    """A run that nobody disturbed."""
    out = tmp_path_factory.mktemp("finished")
    run_suite(job, Plan(2, 0, 0, limited=True), out, ["mmspec", "eval", "run"])
    return out


@pytest.fixture
def undrawn(monkeypatch):
    """No pages are drawn: they take their time."""
    monkeypatch.setattr("mmspec.eval.report.pages.write_reports", lambda folder: [])


def lines(folder: Path, kind: str) -> list[dict]:
    every = map(json.loads, (folder / "samples.jsonl").read_text().splitlines())
    return [line for line in every if line["kind"] == kind]


@pytest.mark.slow
def test_every_method_and_peer_is_a_row_of_each_way_to_call(finished):
    report = Report.read(finished)
    assert list(report.methods) == [f"{a}@{c}" for c in ("greedy", "sampled") for a in ARMS]
    assert 0 < report.target_entropy < 7
    for name, row in report.methods.items():
        arm, call = name.split("@")
        assert (row.call, row.n, row.n_speed) == (call, 2, 2)
        told = [x for x in lines(finished, "speed") if x["method"] == name]
        emitted = sum(sum(x["stats"]["emitted"]) for x in told)
        calls = sum(sum(x["stats"]["calls"]) for x in told)
        assert row.mean_acceptance_length == pytest.approx(emitted / calls)
        assert {"prefill", "target"} <= set(row.phase_seconds)
        assert (row.speedup_median is None) == (arm == "plain")
        assert {"truthfulness", "coverage"} == set(row.quality)
        assert row.quality["coverage"].difference_ci95 is None  # of two questions
    roles = {name.split("@")[0]: row.role for name, row in report.methods.items()}
    assert roles == {
        **dict.fromkeys(METHODS, "method"),
        "plain": "baseline",
        "drafter-only": "sceptic",
        "draft:blank": "ablation",
        "specvlm:blank": "ablation",
        **dict.fromkeys(PEERS, "peer"),
    }


def test_exact_rows_and_peers_say_greedily_what_the_plain_loop_says(finished):
    report = Report.read(finished)
    for arm in ARMS:
        same = report.methods[f"{arm}@greedy"].same_output
        assert same == 1.0 if arm != "drafter-only" else same < 1
        assert report.methods[f"{arm}@sampled"].same_output is None
    texts = {(x["method"], x["index"]): x["text"] for x in lines(finished, "quality")}
    assert texts["draft@greedy", 1] == texts["plain@greedy", 1] != ""


def test_what_looking_gains_is_the_ratio_of_the_lengths(finished):
    rows = Report.read(finished).methods
    for call in ("greedy", "sampled"):
        draft = rows[f"draft@{call}"]
        for what, other in (("blank", "draft:blank"), ("prompt-lookup", "prompt-lookup")):
            ratio = draft.acceptance_ratios[what]
            length = rows[f"{other}@{call}"].mean_acceptance_length
            assert ratio.value == pytest.approx(draft.mean_acceptance_length / length)
            assert ratio.ci95 is None  # of two questions
        assert set(rows[f"prompt-lookup@{call}"].acceptance_ratios) == set()
        assert set(rows[f"specvlm@{call}"].acceptance_ratios) == {"blank", "prompt-lookup"}


def test_the_compressors_choices_are_counted(finished, job):
    row = Report.read(finished).methods["specvlm@greedy"]
    assert sum(choice.n for choice in row.choices.values()) == 2
    told = [x["choice"] for x in lines(finished, "quality") if x["method"] == "specvlm@greedy"]
    for branch, choice in row.choices.items():
        assert choice.visual == 4  # 2 × 2 patches
        assert 0 <= choice.kept < 4
        seconds = [one["seconds"] for one in told if one["branch"] == branch]
        assert choice.seconds == pytest.approx(sum(seconds) / len(seconds))
        assert min(seconds) > 0
    assert not Report.read(finished).methods["draft@greedy"].choices


def test_reports_need_nothing_else(finished):
    names = {path.name for path in finished.iterdir()}
    assert {"report.json", "report.md", "report.html", "samples.jsonl", "run.json"} <= names
    assert {f"{f}-{c}.svg" for f in ("frontier", "calls") for c in ("greedy", "sampled")} <= names
    assert len(list(finished.glob("pictures/*.png"))) == 2
    page, text = ((finished / f"report.{kind}").read_text() for kind in ("html", "md"))
    assert not re.findall(r'(?:src|href)="(?!#|data:|samples|pictures)', page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    said = {x["text"] for x in lines(finished, "quality") if x["text"]}
    assert sum(one in page for one in said) > len(said) / 2
    for word in ("Methods, greedy", "Methods, sampled", "over itself shown grey"):
        assert word in page
        assert word in text
    assert "specvlm@greedy: " in text
    assert "data:image/png" in page


def timeless(folder: Path) -> list[str]:
    """The samples without their times, sorted, as text."""
    out = []
    for line in map(json.loads, (folder / "samples.jsonl").read_text().splitlines()):
        for name in (*TIMES, "bare_seconds", "costs", "date", "checksum"):
            line.pop(name, None)
        for name in ("seconds", "latency"):
            line.get("stats", {}).pop(name, None)
        line.get("choice", {}).pop("seconds", None)
        out.append(json.dumps(line, sort_keys=True))
    return sorted(out)


@pytest.mark.slow
def test_an_interrupted_run_goes_on(job, finished, tmp_path, monkeypatch, undrawn):
    real, done = Worker.run, []

    def fragile(self, unit):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(unit)
        return real(self, unit)

    monkeypatch.setattr(Worker, "run", fragile)
    todo = Plan(2, 0, 0, limited=True)
    with pytest.raises(KeyboardInterrupt):
        run_suite(job, todo, tmp_path)
    assert not (tmp_path / "report.json").exists()
    done.clear()
    run_suite(job, todo, tmp_path)
    assert [unit.kind for unit in done] == ["speed"]
    assert timeless(tmp_path) == timeless(finished)


def test_questions_and_experts_from_the_command_line(folder, tmp_path, capsys):
    (tmp_path / "questions.yaml").write_text(QUESTIONS)
    command = ["eval", "run", "--suite", str(tmp_path / "questions.yaml"), "--pipeline", "vlm"]
    command += ["--model", str(folder), "--methods", "plain,draft[target_compressor=divprune]"]
    out = tmp_path / "out"
    assert main([*command, "--limit", "3", "-o", str(out), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["methods"]
    lossy = "draft[target_compressor=divprune]"
    assert list(rows) == ["plain", lossy, "verdict", "expert:drafter"]
    assert [row["contract"] for row in rows.values()] == ["exact-greedy", *["lossy"] * 3]
    assert [row["role"] for row in rows.values()] == ["baseline", "method", "method", "sceptic"]
    for row in rows.values():
        assert set(row["quality"]) == {"accuracy"}
        assert len(row["quality"]["accuracy"]["parts"]) == 3
    told = lines(out, "quality")
    assert {line["tag"] for line in told} == {"single_object", "two_object", "counting"}
    costs = rows["verdict"]["members"]
    assert set(costs) == {"drafter", "verdict"}
    # one expert: an answer and its reason; nobody to agree with
    assert (costs["drafter"]["calls"], costs["verdict"]["calls"]) == (2, 1)
    alone = rows["expert:drafter"]["members"]["drafter"]
    mine = [x["members"]["verdict"]["tokens"] for x in told if x["method"] == "verdict"]
    assert costs["verdict"]["tokens"] == pytest.approx(sum(mine) / 3)
    assert alone["calls"] == 1
    assert "What every model was asked for" in (out / "report.md").read_text()


def test_scores_are_the_worlds_own(finished, job):
    for line in lines(finished, "quality"):
        scene = job.prompts[line["index"]].scene
        found = job.prompts[line["index"]].scores(line["text"])
        assert line["scores"] == found
        assert line["prompt"] == scene.question


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--methods", "mulo-sd"], "mulo-sd"),
        (["--methods", "vispec"], "vlm-head --method vispec"),
        (["--size", "32"], "--size is of pictures that are drawn"),
        (["--batch-sizes", "1,2"], "--batch-sizes"),
        (["--weights", "clip=x"], "no use for clip"),
        (["--pipeline", "image"], "is for --pipeline vlm"),
        (["--prompts", "missing.jsonl"], "missing.jsonl"),
        (["--methods", "verdict", "--expert", "a=missing"], "no model folder at missing"),
    ],
)
def test_refused_in_one_line(folder, tmp_path, capsys, more, said):
    command = ["eval", "run", "--suite", "vlm", "--pipeline", "vlm", "--model", str(folder)]
    command += ["--methods", "plain", "--limit", "1", "-o", str(tmp_path / "out")]
    assert main([*command, *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "out").exists()


def test_a_verdict_without_experts(job, tmp_path):
    alone = replace(job, configs=parse_methods(("verdict",)), model=str(tmp_path))
    with pytest.raises(InputError, match="give --expert NAME=FOLDER"):
        check_experts(alone)


def test_what_transformers_refuses_is_left_out_and_said(job, tmp_path, monkeypatch, undrawn):
    def refuse(*_, **__):
        raise ValueError("no assistant\nlike that")

    monkeypatch.setattr("mmspec.eval.modalities.vlm.peers.Peer.answer", refuse)
    small = replace(job, configs=parse_methods(("plain",)), call={"max_new_tokens": 4})
    report = run_suite(small, Plan(1, 0, 0, limited=True), tmp_path)
    assert list(report.methods) == ["plain@greedy", "plain@sampled"]
    said = "transformers:plain@greedy: left out, transformers says: no assistant like that"
    assert said in report.notes
