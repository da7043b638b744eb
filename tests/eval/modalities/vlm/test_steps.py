"""Steps that are routed, in a run: the data tells an oracle how much of either step is true."""

from __future__ import annotations

import math

import pytest
import torch

from mmspec import SpecConfig, VlmPipeline
from mmspec.errors import InputError
from mmspec.eval.modalities.base import MODALITIES
from mmspec.eval.modalities.vlm import bench
from mmspec.eval.modalities.vlm.variants import check_method
from mmspec.eval.run.job import Job, Plan
from mmspec.eval.run.runner import run_suite
from mmspec.eval.schema import Report
from mmspec.eval.suite import load_suite
from mmspec.eval.sweeps import parse_methods

ORACLE, CHANCE = "oracle-routing[step_tokens=4]", "random-routing[step_tokens=4]"


def test_an_oracle_is_told_the_truth(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("mmspec.eval.report.pages.write_reports", lambda folder: [])
    asked, truth = [], bench._truth

    def noted(items, steps):
        found = truth(items, steps)
        asked.extend(zip(items, steps, found, strict=False))
        return found

    monkeypatch.setattr(bench, "_truth", noted)
    suite = load_suite("steps")
    prompts = MODALITIES["vlm"].items(suite, None)
    configs = parse_methods((ORACLE, CHANCE))
    call, threads = {"max_new_tokens": 8}, torch.get_num_threads()
    job = Job(suite, prompts, configs, call, model=str(folder), threads=threads)
    run_suite(job, Plan(1, 0, 0, limited=True), tmp_path, ["mmspec", "eval", "run"])
    rows = Report.read(tmp_path).methods
    assert [*rows] == [f"{m}@{c}" for c in ("greedy", "sampled") for m in ("plain", ORACLE, CHANCE)]
    assert rows[f"{ORACLE}@greedy"].role == "oracle"
    assert rows[f"{CHANCE}@greedy"].role == "sceptic"
    assert {row.contract for name, row in rows.items() if "routing" in name} == {"lossy"}
    assert asked
    for item, step, score in asked:
        assert item is prompts[0]
        assert item.prompt in step.prompt
        assert score == item.score_step(step.before, step.text)
        assert 0 <= score <= 1


def test_without_a_truth_there_is_no_oracle(folder):
    pipe, config = VlmPipeline.from_pretrained(folder), SpecConfig("oracle-routing")
    assert check_method(pipe, config).rule.foresees
    with pytest.raises(InputError, match="asks a reward of steps, and there is none"):
        pipe.check_speculation(config)
    suite = load_suite("vlm-questions")
    short = MODALITIES["vlm"].items(suite, None)[0]
    assert math.isnan(short.score_step("", "Red."))
