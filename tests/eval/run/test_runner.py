"""A whole run on the tiny model: what it writes, how it goes on, and that a kill loses nothing."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from forked import started

from mmspec.errors import InputError
from mmspec.eval.data.prompts import load_prompts
from mmspec.eval.files import fingerprint
from mmspec.eval.run.executor import Worker
from mmspec.eval.run.job import TURNS, Job, Plan, Unit, plan, quality_units
from mmspec.eval.run.runner import _Run, run_suite
from mmspec.eval.run.samples import SampleLog
from mmspec.eval.schema import MethodResult, Report
from mmspec.eval.suite import load_suite
from mmspec.eval.sweeps import parse_methods
from mmspec.eval.variants import SHIFT
from mmspec.methods import registry
from mmspec.methods.resolved import resolve

# what no two runs share
TIMES = ("seconds", "decode_seconds", "bare_seconds", "costs", "phase_seconds", "peak_memory")


@pytest.fixture(scope="module")
def job(tiny_folder) -> Job:
    suite = load_suite("geneval-shapes")
    methods = parse_methods(("draft", "sjd"))
    prompts = load_prompts(suite, None)[:30]
    threads = torch.get_num_threads()
    return Job(suite, prompts, methods, suite.call, model=str(tiny_folder), threads=threads)


WHOLE = Plan(speed=2, quality=30, most=30)


def timeless(folder: Path) -> list[str]:
    """The samples without their times, sorted, as text."""
    out = []
    for text in (folder / "samples.jsonl").read_text().splitlines():
        line = json.loads(text)
        for name in (*TIMES, "energy", "environment", "date", "checksum"):
            line.pop(name, None)
        for name in ("seconds", "latency"):
            line.get("stats", {}).pop(name, None)
        out.append(json.dumps(line, sort_keys=True))
    return sorted(out)


def pictures(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.glob("pictures/*/*.png")}


@pytest.fixture(scope="module")
def finished(job, tmp_path_factory) -> Path:
    """A run that nobody disturbed."""
    out = tmp_path_factory.mktemp("finished")
    run_suite(job, WHOLE, out, ["mmspec", "eval", "run", "a b"])
    return out


@pytest.mark.slow
def test_what_a_run_writes(finished):
    names = sorted(path.name for path in finished.iterdir())
    assert names == [
        *("calls.svg", "frontier.svg", "pictures", "report.html", "report.json", "report.md"),
        *("run.json", "samples.jsonl"),
    ]
    report = Report.read(finished)
    assert report.command == "mmspec eval run 'a b'"
    assert report.for_reporting
    assert list(report.methods) == ["plain", "draft", "sjd"]
    assert 0 < report.target_entropy < 5
    for name, row in report.methods.items():
        assert (row.n, row.n_speed) == (30, 2)
        assert row.role == ("baseline" if name == "plain" else "method")
        assert row.nfe_per_sample * row.mean_acceptance_length == pytest.approx(16)
        assert {"draft", "target", "verify", "update", "decode", "reward"} <= set(row.phase_seconds)
        quality = row.quality["geneval"]
        assert 0 <= quality.value <= 1
        assert len(quality.parts) == 6
        assert (quality.difference_to_plain is None) == (name == "plain")
        if name == "plain":
            assert row.tv_per_step is None  # nothing is drafted
        else:
            mean, most = row.tv_per_step
            assert 0 <= mean <= most < 1e-9  # exact, and measured
            assert row.ideal_speedup > 0
    lines = [json.loads(line) for line in (finished / "samples.jsonl").read_text().splitlines()]
    judged = [line for line in lines if line["kind"] == "quality"]
    assert len(judged) == 3 * 30
    assert {line["picture"] for line in judged} == set(pictures(finished))
    assert all((line["scores"]["geneval"] == 1) == (line["reason"] == "") for line in judged)


def test_a_second_start_does_nothing_twice(job, finished, tmp_path, monkeypatch):
    before = (finished / "samples.jsonl").read_bytes()
    monkeypatch.setattr(Worker, "run", None)  # nobody may be asked for a unit
    run_suite(job, WHOLE, finished)
    assert (finished / "samples.jsonl").read_bytes() == before


@pytest.mark.slow
def test_an_interrupted_run_goes_on(job, finished, tmp_path, monkeypatch):
    real, done = Worker.run, []

    def fragile(self, unit):
        if len(done) == 5:
            done.clear()
            raise KeyboardInterrupt
        done.append(unit)
        return real(self, unit)

    monkeypatch.setattr(Worker, "run", fragile)
    starts = 0
    for _ in range(9):
        starts += 1
        try:
            run_suite(job, WHOLE, tmp_path)
            break
        except KeyboardInterrupt:
            assert not (tmp_path / "report.json").exists()
            done.clear()
    assert 1 < starts < 9
    assert timeless(tmp_path) == timeless(finished)
    assert pictures(tmp_path) == pictures(finished)


@pytest.mark.slow
def test_killed_at_ten_random_moments(job, finished, tiny_folder, tmp_path):
    """kill -9, ten times; then to the end. Samples and pictures are those of an undisturbed run."""
    prompts = tmp_path / "prompts.jsonl"
    known = load_prompts(load_suite("geneval-shapes"), None)[:30]
    prompts.write_text("".join(json.dumps(p.metadata()) + "\n" for p in known))
    suite = tmp_path / "both.yaml"
    suite.write_text(
        "{summary: s, source: prompts, metrics: [geneval], speed: 2, quality: 30, margin: 0.02,"
        " call: {guidance_scale: 2.0, temperature: 1.0, top_k: 100, top_p: 1.0}}"
    )
    command = ["eval", "run", "--suite", str(suite), "--prompts", str(prompts)]
    command += ["--model", str(tiny_folder), "--methods", "draft,sjd", "-o", str(tmp_path / "out")]
    log = tmp_path / "out" / "samples.jsonl"
    dice, killed = random.Random(0), 0
    for _ in range(10):
        base = log.stat().st_size if log.exists() else 0
        process = started(command)
        # until it has written something new, and then a little longer
        while process.is_alive() and (not log.exists() or log.stat().st_size <= base):
            time.sleep(0.01)
        time.sleep(dice.random() * 0.3 if killed >= 3 else 0)  # a quick machine soon ends
        process.kill()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
    assert killed >= 3
    process = started(command)
    process.join()
    assert process.exitcode == 0
    assert timeless(tmp_path / "out") == timeless(finished)
    assert pictures(tmp_path / "out") == pictures(finished)


def test_other_settings_are_refused(job, finished):
    with pytest.raises(InputError, match=r"other settings \(seed differ\)"):
        run_suite(replace(job, seed=1), WHOLE, finished)


def test_other_weights_are_other_settings(job, finished, tmp_path):
    """A model that is trained on has another fingerprint in the same place."""
    before = fingerprint(Path(job.model))
    shutil.copytree(job.model, tmp_path / "model")
    assert fingerprint(tmp_path / "model") == before  # a copy has not
    (weights, *_) = sorted((tmp_path / "model").rglob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert fingerprint(tmp_path / "model") != before
    found = json.loads((finished / "run.json").read_text())
    assert found["weights"] == {"model": before}


def test_where_no_sample_has_a_figure_no_more_are_drawn(job, tmp_path, monkeypatch):
    """They would not have it either."""
    rows = {"plain": MethodResult("exact", 1, 1.0, 1.0, 1.0, [], {})}
    monkeypatch.setattr("mmspec.eval.run.runner.quality_rows", lambda *_: rows)
    folder = SimpleNamespace(log=SampleLog(tmp_path / "samples.jsonl"))
    assert _Run(job, replace(WHOLE, speed=0), folder, None, None)._decided(10)


def test_other_defaults_are_other_settings(job, finished, monkeypatch):
    """Another default of a knob that nobody set makes other settings."""
    changed = dict(registry.presets())
    changed["draft"] = replace(changed["draft"], settings={"num_draft_tokens": 5})
    monkeypatch.setattr(registry, "presets", lambda: changed)
    resolve.cache_clear()
    try:
        with pytest.raises(InputError, match=r"other settings \(methods differ\)"):
            run_suite(job, WHOLE, finished)
    finally:
        resolve.cache_clear()


@pytest.mark.slow
def test_samples_rise_until_the_comparison_is_decided(job, tmp_path, monkeypatch):
    asked = []

    def decided(self, samples):
        asked.append(samples)
        return samples >= 70

    monkeypatch.setattr(_Run, "_decided", decided)
    report = run_suite(job, replace(WHOLE, speed=0, most=200), tmp_path)
    assert asked == [30, 54, 78]
    assert {row.n for row in report.methods.values()} == {78}
    assert any("samples rose from 30 to 78" in note for note in report.notes)
    lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    later = {
        line["index"]: line for line in lines if line.get("method") == "sjd" and "seed" in line
    }
    assert later[40]["prompt"] == later[10]["prompt"]  # the same prompts again, with other seeds
    assert (later[40]["seed"], later[10]["seed"]) == (40, 10)


def test_a_limit_over_a_fuller_folder_is_no_rise(job, finished, tmp_path):
    """Nobody has looked in between."""
    shutil.copytree(finished, tmp_path / "run")
    report = run_suite(job, replace(WHOLE, quality=10, most=10, limited=True), tmp_path / "run")
    assert any("samples already" in note for note in report.notes)
    assert not any("samples rose" in note for note in report.notes)


@pytest.mark.slow
def test_a_run_is_extended_without_drawing_anything_again(job, finished, tmp_path):
    """Cut at 10 samples, then whole, then asked for more: batches differ, samples don't."""
    run_suite(job, replace(WHOLE, quality=10, most=10, limited=True), tmp_path)
    report = Report.read(tmp_path)
    assert (report.methods["sjd"].n, report.for_reporting) == (10, False)
    whole = Report.read(finished)
    assert report.target_entropy != pytest.approx(whole.target_entropy)  # of ten samples
    run_suite(job, WHOLE, tmp_path)
    assert Report.read(tmp_path).target_entropy == pytest.approx(whole.target_entropy)
    lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    judged = [(x["method"], x["index"]) for x in lines if x["kind"] == "quality"]
    assert len(judged) == len(set(judged)) == 3 * 30
    mine, theirs = Report.read(tmp_path), Report.read(finished)
    for name, row in mine.methods.items():
        assert row.quality == theirs.methods[name].quality
        assert row.nfe_per_sample == theirs.methods[name].nfe_per_sample
        assert row.acceptance_by_position == theirs.methods[name].acceptance_by_position


def test_few_samples_rise_too(job, tmp_path):
    """Growth of a handful is at least a batch: it comes to an end."""
    report = run_suite(job, replace(WHOLE, speed=0, quality=2, most=30), tmp_path)
    assert {row.n for row in report.methods.values()} == {30}


def test_a_wrong_start_can_be_corrected(job, tmp_path):
    """Until there is a sample, other settings are no other run."""
    wrong = replace(job, call={**job.call, "height": 100})
    with pytest.raises(InputError, match="100"):
        run_suite(wrong, replace(WHOLE, speed=0), tmp_path)
    assert run_suite(job, replace(WHOLE, speed=0, quality=2, most=2), tmp_path).methods


def test_metrics_without_their_weights_are_refused_before_any_work(job, tmp_path):
    cases = {
        "image_reward": "--weights image_reward=PATH",
        "fid": "compares with real pictures: --reference",
        "dpg": "--weights blip_vqa=PATH",
    }
    for metric, said in cases.items():
        suite = replace(job.suite, metrics=(metric,), margin=None)
        with pytest.raises(InputError, match=said):
            run_suite(replace(job, suite=suite), WHOLE, tmp_path / "out")
    suite = replace(job.suite, judge="mask2former")
    with pytest.raises(InputError, match="mask2former=PATH"):
        run_suite(replace(job, suite=suite), WHOLE, tmp_path / "out")
    suite = replace(job.suite, metrics=("image_reward",), margin=None)
    for files, said in (
        ({"image_reward": "/nothing/here"}, "no /nothing/here"),
        ({"image_rewrad": "x", "image_reward": str(tmp_path)}, "did you mean 'image_reward'"),
        ({"reference": str(tmp_path), "image_reward": str(tmp_path)}, "--reference is nothing"),
    ):
        with pytest.raises(InputError, match=said):
            run_suite(replace(job, suite=suite, files=files), WHOLE, tmp_path / "out")
    suite = replace(job.suite, metrics=("frechet_shapes_clip",), margin=None)
    missing = replace(job, suite=suite, files={"reference": "/nothing/there"})
    with pytest.raises(InputError, match="/nothing/there"):
        run_suite(missing, WHOLE, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_units_cover_everything_once():
    for first, last in ((0, 600), (0, 25), (24, 50), (0, 0)):
        units = list(quality_units(["plain", "sjd"], last, {"sjd": range(first)}))
        for method, start in (("plain", 0), ("sjd", first)):
            own = [u for u in units if u.method == method]
            indices = [i for u in own for i in range(u.first, u.first + u.count)]
            assert indices == list(range(start, last))
    keys = [
        Unit(k, f, c, m, at_once).key
        for k in ("speed", "quality")
        for f in (1, 11)
        for c in (1, 11)
        for m in ("", "plain")
        for at_once in (None, 1, 11)
    ]
    assert len(set(keys)) == len(keys)


def timed(prompts: int, *batches: int, closed_loop: bool = False) -> list[tuple[int, int, int]]:
    units = Plan(prompts, 0, 0, batches, closed_loop).speed_units()
    return [(unit.first, unit.count, unit.size) for unit in units]


def test_speed_is_measured_of_all_prompts():
    assert timed(10, 1, 4)[:10] == [(i, 1, 1) for i in range(10)]
    # as many batches as an interval takes, and no more than there are prompts
    assert timed(10, 1, 4)[10:] == [(4 * i, 4, 4) for i in range(6)]
    assert timed(3, 8) == [(0, 8, 8), (8, 8, 8), (16, 8, 8)]
    assert len(timed(50, 4)) == 12
    assert timed(0, 1, 4) == []


def test_closed_loops_have_prompts_that_wait():
    loops = timed(60, 1, 2, 8, closed_loop=True)
    assert loops[:60] == timed(60, 1)
    assert loops[60:70] == [(2 * TURNS * i, 2 * TURNS, 2) for i in range(10)]
    assert loops[70:] == [(8 * TURNS * i, 8 * TURNS, 8) for i in range(6)]


def test_plans(job):
    assert plan(job, None) == Plan(0, 600, 600)
    both = replace(job, suite=replace(job.suite, speed=5))
    assert plan(both, None, most=2000, batches=(1, 8)) == Plan(5, 600, 2000, (1, 8))
    assert plan(job, 7) == Plan(0, 7, 7, limited=True)
    assert plan(job, 600) == plan(job, None)  # nothing is cut
    with pytest.raises(InputError, match="measures no speed"):
        plan(job, None, batches=(1, 8))
    with pytest.raises(InputError, match="no margin"):
        plan(replace(job, suite=load_suite("speed")), None, most=100)
    official = replace(job, suite=replace(job.suite, images_per_prompt=4, quality=2212))
    assert plan(official, None).quality == 4 * len(job.prompts)


def test_batches_of_other_sizes(job, tmp_path):
    todo = Plan(speed=4, quality=0, most=0, batches=(1, 3))
    report = run_suite(job, todo, tmp_path)
    for name, row in report.methods.items():
        assert list(row.throughput) == [3]
        assert row.throughput[3].n == 4  # prompts come again, with other seeds
        assert row.throughput[3].tokens_per_second > 0
        assert (row.throughput[3].speedup_median is None) == (name == "plain")


def test_plain_again_has_seeds_of_its_own(job, tmp_path):
    again = replace(job, suite=replace(job.suite, again=True), configs=parse_methods(("sjd",)))
    report = run_suite(again, Plan(speed=2, quality=3, most=3), tmp_path)
    assert list(report.methods) == ["plain", "sjd", "plain:again"]
    row = report.methods["plain:again"]
    assert (row.role, row.contract, row.n, row.n_speed) == ("again", "exact", 3, 2)
    assert row.quality["geneval"].verdict == ""
    lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    for kind in ("quality", "speed"):
        told = [x for x in lines if x["kind"] == kind]
        own, others = (
            [x["seed"] for x in told if (x["method"] == row.family) == is_own]
            for is_own in (True, False)
        )
        assert own
        assert min(own) >= SHIFT > max(others)
    drawn = pictures(tmp_path)
    for index in range(3):
        mine, plain = (f"pictures/{name}/{index:05d}.png" for name in ("plain:again", "plain"))
        assert drawn[mine] != drawn[plain]


def test_settings_of_a_method_are_rows_of_one_family(job, tmp_path):
    """Both are drawn, judged and timed apart; the window that may grow longer asks less often."""
    names = ("sjd[window=1]", "draft", "sjd[window=8]", "sjd[window=8,rule=block]")
    todo = Plan(speed=2, quality=6, most=6)
    report = run_suite(replace(job, configs=parse_methods(names)), todo, tmp_path)
    assert Report.read(tmp_path) == report
    rows = report.methods
    order = ["plain", "sjd[window=1]", "sjd[window=8]", "sjd[window=8,rule=block]", "draft"]
    assert list(rows) == order
    assert [row.family for row in rows.values()] == [
        "plain",
        "sjd",
        "sjd",
        "sjd[rule=block]",
        "draft",
    ]
    assert [row.knob_value for row in rows.values()] == [None, 1, 8, 8, None]
    assert rows["sjd[window=1]"].knob == "window"
    assert rows["sjd[window=8]"].nfe_per_sample < rows["sjd[window=1]"].nfe_per_sample < 16
    assert len(rows["sjd[window=1]"].acceptance_by_position) == 1
    assert len(pictures(tmp_path)) == 6 * len(order)
    for name in order[1:]:
        assert (rows[name].n, rows[name].n_speed, rows[name].role) == (6, 2, "method")
        assert (tmp_path / f"pictures/{name}/00000.png").is_file()
    page = (tmp_path / "report.html").read_text()
    assert "sjd: window" in page
    assert "## Speed against quality" in (tmp_path / "report.md").read_text()
