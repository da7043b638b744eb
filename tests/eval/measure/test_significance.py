"""Two runs compared: what pairs, the figures against scipy and by hand, and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy import stats

from mmspec.errors import InputError
from mmspec.eval.measure.paired_tests import holm
from mmspec.eval.measure.significance import (
    SECONDS,
    compare_command,
    compare_reports,
    unlike_settings,
)
from mmspec.eval.schema import MethodResult, Report
from mmspec.eval.schema_parts import Quality

TAGS = ("colors", "counting")


@dataclass
class Run:
    """Content of a run's folder: per method, scores by index and seconds by index."""

    geneval: dict[str, dict[int, float]]
    clip: dict[str, dict[int, float]] = field(default_factory=dict)
    seconds: dict[str, dict[int, float]] = field(default_factory=dict)
    seed: int = 0
    settings: dict = field(default_factory=dict)

    def write(self, folder):
        folder.mkdir()
        lines = []
        for name, scores in self.geneval.items():
            for i, score in scores.items():
                line = {"unit": "u", "kind": "quality", **self._call(name, i)}
                line["scores"] = {"geneval": score}
                if i in self.clip.get(name, {}):
                    line["scores"]["clip_score"] = self.clip[name][i]
                lines.append(line)
        for name, seconds in self.seconds.items():
            for i, took in seconds.items():
                line = {"unit": "u", "kind": "speed", **self._call(name, i), "batch": 1}
                lines.append({**line, "seconds": 2 * took, "decode_seconds": took})
        (folder / "samples.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        methods = {name: self._row(name) for name in self.geneval | self.seconds}
        settings = {"seed": self.seed, **self.settings}
        Report("s", "image", "m", "", settings, {}, None, {}, methods).write(folder)
        return folder

    def _call(self, name, i):
        prompt, tag = f"prompt {i}", TAGS[i % 3 == 0]
        return {"method": name, "index": i, "seed": self.seed + i, "prompt": prompt, "tag": tag}

    def _row(self, name):
        scores = self.geneval.get(name, {})
        parts = {
            tag: float(np.mean([s for i, s in scores.items() if TAGS[i % 3 == 0] == tag]))
            for tag in TAGS
            if scores
        }
        row = MethodResult("exact", len(scores), 1.0, 1.0, 1.0, [], {})
        if scores:
            row.quality["geneval"] = Quality(float(np.mean(list(parts.values()))), parts=parts)
        return row


def numbers(values) -> dict[int, float]:
    return {i: float(v) for i, v in enumerate(values)}


@pytest.fixture
def two(tmp_path):
    """Two folders with 60 pictures and 30 timed calls in common."""
    rng = np.random.default_rng(11)
    runs = []
    for name, rate, pace in (("a", 0.55, 0.5), ("b", 0.75, 0.4)):
        run = Run({"scd": numbers(rng.random(60) < rate)})
        run.clip = {"scd": numbers(rng.normal(25 + 4 * pace, 2, 60).round(3))}
        run.seconds = {"scd": numbers((pace * rng.lognormal(0, 0.1, 30)).round(4))}
        runs.append((run, run.write(tmp_path / name)))
    return runs


def test_rows_against_scipy(two):
    (a, folder_a), (b, folder_b) = two
    rows = {row["metric"]: row for row in compare_reports(folder_a, folder_b)}
    assert list(rows) == ["geneval", "clip_score", SECONDS]
    for metric, left, right in (("clip_score", a.clip, b.clip), (SECONDS, a.seconds, b.seconds)):
        x, y = (np.array(list(of["scd"].values())) for of in (left, right))
        row = rows[metric]
        assert (row["n"], row["unpaired_a"], row["unpaired_b"]) == (len(x), 0, 0)
        assert (row["method_a"], row["method_b"]) == ("scd", "scd")
        statistic = np.mean if metric == "clip_score" else np.median
        paired = y - x if metric == "clip_score" else x / y
        value, spread = (
            (row["difference"], row["difference_ci95"])
            if metric == "clip_score"
            else (row["ratio"], row["ratio_ci95"])
        )
        assert value == pytest.approx(statistic(paired), abs=1e-12)
        oracle = stats.bootstrap(
            (paired,), statistic, method="percentile", n_resamples=9999, random_state=1
        ).confidence_interval
        assert spread == pytest.approx(tuple(oracle), abs=0.1 * (oracle.high - oracle.low))
        assert (row["a"], row["b"]) == pytest.approx((statistic(x), statistic(y)))
    seconds = np.log(list(a.seconds["scd"].values())) - np.log(list(b.seconds["scd"].values()))
    assert rows[SECONDS]["p"] == pytest.approx(stats.wilcoxon(seconds).pvalue, rel=1e-9)
    x, y = (np.array(list(of.geneval["scd"].values())) for of in (a, b))
    up, down = int((y > x).sum()), int((y < x).sum())
    assert rows["geneval"]["test"] == "McNemar"
    assert rows["geneval"]["p"] == pytest.approx(stats.binomtest(up, up + down).pvalue)
    p_values = [row["p"] for row in rows.values()]
    assert [row["p_holm"] for row in rows.values()] == holm(p_values)
    assert rows["geneval"]["p_holm"] > rows["geneval"]["p"]


def test_a_metric_of_parts_differs_as_the_reports_do(two):
    (_, folder_a), (_, folder_b) = two
    row = compare_reports(folder_a, folder_b)[0]
    values = [Report.read(f).methods["scd"].quality["geneval"].value for f in (folder_a, folder_b)]
    assert (row["a"], row["b"]) == pytest.approx(tuple(values), abs=1e-12)
    assert row["difference"] == pytest.approx(values[1] - values[0], abs=1e-12)
    low, high = row["difference_ci95"]
    assert low < row["difference"] < high


class OneQuestion(Run):
    """The same words about another picture each time."""

    def _call(self, name, i):
        return {**super()._call(name, i), "prompt": "Describe it.", "item": i}


def test_one_question_about_many_pictures_is_many(tmp_path):
    values = numbers([0, 1] * 10), numbers([1, 1, 0, 1] * 5)
    pairs = zip("ab", values, strict=True)
    a, b = (OneQuestion({"scd": v}).write(tmp_path / name) for name, v in pairs)
    (row,) = compare_reports(a, b)
    low, high = row["difference_ci95"]
    assert low < row["difference"] < high


class FourEach(Run):
    """Four pictures a prompt."""

    def _call(self, name, i):
        return {**super()._call(name, i), "prompt": f"prompt {i // 4}", "tag": "colors"}


def test_pictures_of_a_prompt_are_one_observation(tmp_path):
    a = FourEach({"scd": numbers([0] * 40)}).write(tmp_path / "a")
    b = FourEach({"scd": numbers([1] * 12 + [0] * 28)}).write(tmp_path / "b")
    (row,) = compare_reports(a, b)
    assert (row["test"], row["p"]) == ("sign flip", pytest.approx(0.25))


def test_few_prompts_have_no_interval(tmp_path):
    a = Run({"scd": numbers([0, 1, 0])}).write(tmp_path / "a")
    b = Run({"scd": numbers([1, 1, 1])}).write(tmp_path / "b")
    assert compare_reports(a, b)[0]["difference_ci95"] is None
    assert compare_command(a, b, as_json=False) == 0


def test_shorter_answers_are_no_faster(tmp_path):
    for name, tokens in (("a", 100), ("b", 50)):
        run = Run({}, seconds={"scd": numbers([tokens / 50] * 8)}).write(tmp_path / name)
        file = run / "samples.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        lines = [line | {"stats": {"emitted": [tokens]}} for line in lines]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (row,) = compare_reports(tmp_path / "a", tmp_path / "b")
    assert (row["a"], row["b"], row["ratio"]) == pytest.approx((2.0, 1.0, 1.0))


def test_only_equal_index_seed_and_prompt_pair(tmp_path):
    a = Run({"scd": numbers([1, 0, 1, 1, 0])}).write(tmp_path / "a")
    b = Run({"scd": dict.fromkeys(range(2, 9), 1.0)}).write(tmp_path / "b")
    (row,) = compare_reports(a, b)
    assert (row["n"], row["unpaired_a"], row["unpaired_b"]) == (3, 2, 4)
    other = Run({"scd": numbers([1, 0, 1, 1, 0])}, seed=1).write(tmp_path / "other")
    with pytest.raises(InputError, match=r"nothing to compare.* same suite and --seed"):
        compare_reports(a, other)


def test_named_pairs_and_unknown_names(tmp_path):
    scores = {"sjd": numbers([1, 0, 1, 0]), "scd": numbers([1, 1, 1, 0])}
    run = Run(scores).write(tmp_path / "run")
    (row,) = compare_reports(run, run, "sjd:scd")
    assert (row["method_a"], row["method_b"]) == ("sjd", "scd")
    assert row["difference"] > 0
    both = compare_reports(run, run, "sjd, scd:scd")
    assert [(r["method_a"], r["method_b"]) for r in both] == [("sjd", "sjd"), ("scd", "scd")]
    assert {r["p_holm"] for r in both} == {1.0}
    with pytest.raises(InputError, match=r"unknown method of the second run 'scdd'.*'scd'"):
        compare_reports(run, run, "sjd:scdd")
    with pytest.raises(InputError, match="--methods is empty"):
        compare_reports(run, run, " , ")
    alone = Run({"draft": numbers([1, 0])}).write(tmp_path / "alone")
    with pytest.raises(InputError, match="no method is in both: sjd, scd and draft"):
        compare_reports(run, alone)


def test_names_may_hold_colons(tmp_path):
    named = {"plain:again": numbers([1, 0, 1, 0]), "plain": numbers([1, 1, 1, 0])}
    run = Run(named | {"draft[rule=mine:Rule]": numbers([0, 0, 1, 0])}).write(tmp_path / "run")
    for text, pair in {
        "plain:again": ("plain:again", "plain:again"),
        "plain:plain:again": ("plain", "plain:again"),
        "plain:again:plain": ("plain:again", "plain"),
        "plain:": ("plain", "plain"),
        "draft[rule=mine:Rule]:plain": ("draft[rule=mine:Rule]", "plain"),
    }.items():
        (row,) = compare_reports(run, run, text)
        assert (row["method_a"], row["method_b"]) == pair
    with pytest.raises(InputError, match="unknown method of the second run 'nope'"):
        compare_reports(run, run, "draft[rule=mine:Rule]:nope")


def test_what_is_not_compared_is_said(tmp_path, capsys):
    """Two runs share plain; each has a method of its own."""
    scores = numbers([1, 0, 1, 0])
    a = Run({"plain": scores, "sjd": scores}).write(tmp_path / "a")
    b = Run({"plain": scores, "scd": scores, "gsd": scores}).write(tmp_path / "b")
    assert compare_command(a, b, as_json=False) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first == (
        "warning: compared are plain; only A has sjd and only B has scd, gsd: pair methods of "
        "unlike names with --methods x:y"
    )
    assert compare_command(a, b, as_json=True, methods="sjd:scd") == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []


def test_metrics_and_methods_that_do_not_pair_are_said(tmp_path, capsys):
    scores = numbers([1, 0, 1, 0])
    runs = [Run({"plain": scores, "sjd": own}) for own in (scores, {9: 1.0, 10: 0.0})]
    a, b = (run.write(tmp_path / name) for run, name in zip(runs, "ab", strict=True))
    report = Report.read(b)
    report.methods["plain"].quality["frechet"] = Quality(3.0)
    report.write(b)
    assert compare_command(a, b, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == [
        "sjd not compared: no sample of equal index, seed, prompt",
        "frechet of plain not compared: no figures of single samples in both",
    ]


def test_unlike_settings_are_named(tmp_path):
    settings = [{"guidance_scale": g, "call": {"top_k": 5}} for g in (2.0, 3.0)]
    a, b = (
        Report.read(Run({"scd": numbers([1, 0])}, settings=s).write(tmp_path / str(i)))
        for i, s in enumerate(settings)
    )
    b.settings["call"] = {"top_k": 5, "top_p": 0.9}
    b.suite = "t"
    assert unlike_settings(a, a) == []
    assert unlike_settings(a, b) == [
        "suite differs: s and t",
        "setting.guidance_scale differs: 2.0 and 3.0",
        "setting.call.top_p differs: – and 0.9",
    ]


def test_the_command_prints_a_table_or_json(two, capsys):
    (_, a), (_, b) = two
    assert compare_command(a, b, as_json=True) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["rows"] == json.loads(json.dumps(compare_reports(a, b)))
    assert printed["warnings"] == [
        "seconds come from two runs: what the machine did between them counts too"
    ]
    assert compare_command(a, b, as_json=False) == 0
    warning, head, *rows = capsys.readouterr().out.splitlines()
    assert warning.startswith("warning: seconds come from two runs")
    assert head.split()[:2] == ["method", "metric"]
    assert [row.split()[:2] for row in rows] == [
        ["scd", "geneval"],
        ["scd", "clip_score"],
        ["scd", "decode"],
    ]
    place = head.index("metric")
    assert all(row[place - 1] == " " != row[place] for row in rows)
    assert f"{printed['rows'][0]['difference']:+.3f}".replace("-", "−") in rows[0]
    compare_command(a, a, as_json=True)
    assert json.loads(capsys.readouterr().out)["warnings"] == []


def test_bad_folders_and_lines(two, tmp_path):
    (_, a), (_, b) = two
    with pytest.raises(InputError, match=r"no folder .*nowhere"):
        compare_reports(a, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"can't read .*report\.json"):
        compare_reports(tmp_path / "empty", b)
    (b / "samples.jsonl").write_text('{"kind": 1}\n{}\n')
    with pytest.raises(InputError, match=r"samples\.jsonl:1: "):
        compare_reports(a, b)
