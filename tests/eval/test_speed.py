"""The speed report: its schema, paired timing, intervals, the ideal, and the rows by hand."""

from __future__ import annotations

import json
import random
import statistics
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mmspec.config import SpecConfig
from mmspec.engine.stats import SpecStats
from mmspec.errors import InputError
from mmspec.eval.compare import _row
from mmspec.eval.ideal import BareCosts, call_seconds, ideal_seconds
from mmspec.eval.quality import summarize_quality
from mmspec.eval.runner import PROMPTS, load_prompts, load_suite, parse_methods
from mmspec.eval.schema import VERSION, MethodResult, Report
from mmspec.eval.speed import summarize
from mmspec.eval.timing import Sample, environment, paired_runs, ratio_interval
from mmspec.worlds.shapes.vocabulary import TASKS


def result(**fields) -> MethodResult:
    given = dict(
        contract="exact",
        n=3,
        nfe_per_sample=16.0,
        target_tokens_per_sample=16.0,
        mean_acceptance_length=1.0,
        acceptance_by_position=[],
        seconds_median=0.5,
        decode_seconds_median=0.4,
        phase_seconds={"target": 0.4},
    )
    return MethodResult(**{**given, **fields})


# --- schema ---------------------------------------------------------------------------------------


@pytest.fixture
def report() -> Report:
    sjd = result(
        acceptance_by_position=[0.9, 0.5],
        speedup_median=1.5,
        speedup_ci95=(1.25, 1.75),
        speedup_end_to_end_median=1.25,
        ideal_speedup=1.75,
        engine_efficiency=1.5 / 1.75,
        quality={"overall": 0.5},
    )
    methods = {"plain": result(), "sjd": sjd}
    costs = {"target": {1: 0.001, 17: 0.002}}
    return Report("speed", "image", "m", {"seed": 0}, environment(), 2.5, costs, methods)


def test_report_round_trip(report, tmp_path):
    path = report.write(tmp_path / "a" / "b")
    assert path == tmp_path / "a" / "b" / "report.json"
    assert Report.read(path) == report
    assert [file.name for file in path.parent.iterdir()] == ["report.json"]
    assert json.loads(path.read_text())["version"] == VERSION


def test_a_failed_write_leaves_the_old_report(report, tmp_path):
    path = report.write(tmp_path)
    with pytest.raises(TypeError):
        replace(report, settings={"seed": object()}).write(tmp_path)
    assert Report.read(path) == report


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version=VERSION + 1), "version"),
        (lambda d: d.pop("version"), "version"),
        (lambda d: d.pop("environment"), "environment"),
        (lambda d: d.update(mood="good"), "mood"),
        (lambda d: d["methods"]["sjd"].pop("n"), "method sjd.* n"),
        (lambda d: d["methods"]["sjd"].update(speed=2), "method sjd.* speed"),
    ],
)
def test_reports_of_another_shape(report, tmp_path, change, message):
    data = asdict(report)
    change(data)
    (tmp_path / "report.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=message):
        Report.read(tmp_path / "report.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", None])
def test_no_reports(tmp_path, text):
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    with pytest.raises(InputError, match=r"report\.json"):
        Report.read(tmp_path / "report.json")


# --- intervals ------------------------------------------------------------------------------------


def slow_interval(ratios: list[float], rounds: int) -> tuple[float, float]:
    """Percentile bootstrap of the median, one resample at a time, with Python's own dice."""
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(rounds))
    return medians[int(0.025 * rounds)], medians[int(0.975 * rounds)]


@pytest.mark.parametrize("n", [5, 30, 101])
def test_interval_against_a_slow_bootstrap(n):
    ratios = np.exp(np.random.default_rng(n).normal(0.3, 0.2, n)).tolist()
    middle, (low, high) = ratio_interval(ratios)
    assert middle == statistics.median(ratios)
    truth = slow_interval(ratios, 4000)
    assert (low, high) == pytest.approx(truth, abs=0.03)
    assert min(ratios) <= low < middle < high <= max(ratios)


def test_known_intervals():
    assert ratio_interval([1.5]) == (1.5, (1.5, 1.5))
    assert ratio_interval([2.0] * 9) == (2.0, (2.0, 2.0))
    # the median of three draws from two values: both are within reach of 2.5 %
    assert ratio_interval([1.0, 1.0, 3.0]) == (1.0, (1.0, 3.0))
    assert ratio_interval([1.0, 2.0, 3.0]) == ratio_interval([1.0, 2.0, 3.0])


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        _, (low, high) = ratio_interval(rng.normal(1.0, 0.1, 50).tolist(), rounds=300)
        held += low <= 1.0 <= high
    assert 0.90 <= held / 300 <= 0.99


# --- paired runs ----------------------------------------------------------------------------------


class FakePipe:
    """Records who drew what, in which order, from which seed."""

    def __init__(self) -> None:
        self.speculation = SpecConfig(method="sjd", window=3)
        self.log: list[tuple[str, str, int]] = []

    def enable_speculation(self, config: SpecConfig) -> None:
        self.speculation = config

    def __call__(self, prompt, generator, **call):
        assert call == {"top_k": 5}
        self.log.append((self.speculation.method, prompt, generator.initial_seed()))
        return SimpleNamespace(stats=SpecStats(self.speculation.method))


CONFIGS = {name: SpecConfig(method=name) for name in ("plain", "draft", "sjd")}


def test_methods_take_turns_on_the_same_seeds():
    pipe, told = FakePipe(), []
    samples = paired_runs(
        pipe,
        CONFIGS,
        ["a", "b", "c", "d"],
        10,
        {"top_k": 5},
        warmup=2,
        on_sample=lambda name, sample: told.append((name, sample.prompt, sample.seed)),
    )
    rounds = [pipe.log[i : i + 3] for i in range(0, len(pipe.log), 3)]
    assert len(rounds) == 2 + 4
    assert all(sorted(m for m, *_ in r) == ["draft", "plain", "sjd"] for r in rounds)
    assert [r[0][1:] for r in rounds] == [*[("a", 10)] * 3, ("b", 11), ("c", 12), ("d", 13)]
    assert all(len({case[1:] for case in r}) == 1 for r in rounds)
    first = [r[0][0] for r in rounds[2:]]
    assert first == ["plain", "draft", "sjd", "plain"]  # nobody always goes first
    assert told == [case for r in rounds[2:] for case in r]
    assert list(samples) == list(CONFIGS)
    for name, rows in samples.items():
        assert [(s.prompt, s.seed) for s in rows] == [("a", 10), ("b", 11), ("c", 12), ("d", 13)]
        assert {s.stats.method for s in rows} == {name}
        assert all(s.seconds >= 0 for s in rows)
    assert pipe.speculation == SpecConfig(method="sjd", window=3)


def test_speculation_is_put_back_after_an_error():
    pipe = FakePipe()
    with pytest.raises(AssertionError):
        paired_runs(pipe, CONFIGS, ["a"], 0, {"top_k": 6})
    assert pipe.speculation == SpecConfig(method="sjd", window=3)


# --- the ideal ------------------------------------------------------------------------------------


def costs(first: float, more: float):
    """T(n) = first + more · (n − 1), in place of a measurement."""
    return lambda n: first + more * (n - 1)


def counted(rounds: list[int]) -> SpecStats:
    """Counters of calls that drafted so many nodes."""
    return SpecStats(rounds=rounds)


def test_ideal_seconds_by_hand():
    target, drafter = costs(10, 1), costs(2, 100)
    # two calls of 4 drafts, one of 2, one of none: T(5) + T(5) + T(3) + T(1)
    rounds = [4, 4, 2, 0]
    verify = 14 + 14 + 12 + 10
    assert ideal_seconds(CONFIGS["sjd"], counted(rounds), target, drafter) == verify
    assert ideal_seconds(CONFIGS["draft"], counted(rounds), target, drafter) == verify + 10 * 2
    assert ideal_seconds(CONFIGS["draft"], counted(rounds), target, None) == verify
    assert ideal_seconds(CONFIGS["plain"], counted([0] * 16), target, drafter) == 160
    assert (
        ideal_seconds(SpecConfig(method="sjd", drafter="model"), counted([3]), target, drafter)
        == 13 + 6
    )


def test_bare_costs_lie_on_lines_and_are_renewed(monkeypatch):
    asked: list[int] = []

    def measured(decoder, rows, grid, n, repeats):
        asked.append(n)
        return float(n * n + len(asked))

    monkeypatch.setattr("mmspec.eval.ideal.measure_forward", measured)
    costs = BareCosts(None, 2, 16)
    assert costs(5) == costs(5) == 26
    assert costs(7) == pytest.approx((26 + 83) / 2)  # 5² + 1 and 9² + 2
    assert asked == [5, 9]
    costs.renew()
    assert costs(9) == 84
    assert costs.seconds == {5: 26, 9: (83 + 84) / 2}


def test_tree_drafter_costs_a_pass_a_level():
    target, drafter = costs(10, 1), costs(2, 0.5)
    config = SpecConfig(method="tree", tree_widths=(2, 1, 1))
    # T(7); the drafter reads 1, then the root and 2 nodes, then the root and 4
    assert ideal_seconds(config, counted([6]), target, drafter) == 16 + 2 + 3 + 4
    assert ideal_seconds(config, counted([2, 0]), target, drafter) == 12 + 2 + 10


def test_call_seconds(monkeypatch):
    """The first three calls don't count."""
    clock = iter([0, 50, 100, 200, 201, 300, 302, 400, 490])
    fake = SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr("mmspec.eval.ideal.time", fake)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    calls = []
    assert call_seconds(lambda: calls.append(1), repeats=3) == [1, 2, 90]
    assert len(calls) == 6


# --- rows -----------------------------------------------------------------------------------------


def sample(rounds, decode, around, **stats) -> Sample:
    """One sample whose loop took `decode` seconds and whose call took `around` more."""
    seconds = {"encode": around / 2, "prefill": around / 2, "draft": 0.0, "verify": 0.0}
    seconds |= {"target": decode * 0.75, "update": decode * 0.25}
    counters = SpecStats("sjd", "exact", rounds=rounds, seconds=seconds, **stats)
    return Sample("p", 0, decode + around, counters, None)


def plain_sample(decode: float) -> Sample:
    counters = dict(calls=[8], drafted=[0], accepted=[0], emitted=[8], target_tokens=[8])
    return sample([0] * 8, decode, 2.0, **counters)


def test_rows_by_hand():
    plain = [plain_sample(8.0), plain_sample(12.0), plain_sample(16.0)]
    one = dict(drafted=[4], accepted=[5], emitted=[8], judged_at=[3, 2], accepted_at=[3, 1])
    fast = [
        sample([1, 2, 1], 4.0, 2.0, calls=[3], target_tokens=[7], **one),
        sample([3, 1], 4.0, 6.0, calls=[2], target_tokens=[6], **one),
        sample([2], 16.0, 2.0, calls=[4], target_tokens=[8], **{**one, "judged_at": [4]}),
    ]
    fast[2].stats.accepted_at = [1]
    for name, samples in (("sjd", fast), ("plain", plain)):
        for one_sample in samples:
            rounds = one_sample.stats.rounds
            bare = ideal_seconds(CONFIGS[name], counted(rounds), costs(1, 0.5), None)
            one_sample.bare_seconds = bare
    row = summarize("sjd", fast, plain)
    assert (row.contract, row.n, row.nfe_per_sample) == ("exact", 3, 3)
    assert row.target_tokens_per_sample == 7
    assert row.mean_acceptance_length == 24 / 9
    assert row.acceptance_by_position == [7 / 10, 2 / 4]
    assert row.seconds_median == 10
    assert row.decode_seconds_median == 4
    assert row.phase_seconds["target"] == 0.75 * 24 / 3
    assert row.phase_seconds["encode"] == 5 / 3
    # in pairs: 8/4, 12/4, 16/16; end to end 10/6, 14/10, 18/18
    assert row.speedup_median == 2
    assert row.speedup_end_to_end_median == 1.4
    assert row.speedup_ci95 == (1, 3)
    # bare passes: T(2)+T(3)+T(2) = 5, T(4)+T(2) = 4, T(3) = 2
    assert row.ideal_speedup == statistics.median([8 / 5, 12 / 4, 16 / 2])
    assert row.engine_efficiency == 2 / 3

    base = summarize("plain", plain, plain)
    assert base.speedup_median is base.speedup_ci95 is base.speedup_end_to_end_median is None
    assert base.ideal_speedup == 12 / 8
    assert base.engine_efficiency == pytest.approx(8 / 12)


def test_row_of_stats_json():
    plain = [plain_sample(8.0), plain_sample(12.0)]
    row = _row(plain, plain)
    assert (row["n"], row["seconds_median"]) == (2, 12.0)  # between 10 and 14
    assert "speedup_median" not in row
    other = [plain_sample(4.0), plain_sample(4.0)]
    row = _row(other, plain)
    assert row["speedup_median"] == 2.5
    assert row["speedup_ci95"] == (2, 3)
    assert "speedup_median" not in _row(other, None)


def test_merged_counters():
    one = SpecStats("draft", "exact")
    one.start(2)
    one.observe(3, [2, 3], [2, 3], [2, 1], [3, 2])
    two = SpecStats("draft", "exact")
    two.start(1)
    two.observe(4, [4], [4], [4], [5])
    two.observe(1, [1], [1], [0], [1])
    one.seconds, two.seconds = {"target": 1.0}, {"target": 2.0, "draft": 0.5}
    two.fault, two.own_drafts = "it raised", 2.0
    both = one.merged([two])
    assert (both.method, both.contract) == ("draft", "exact")
    assert both.calls == [1, 1, 2]
    assert both.drafted == [2, 3, 5]
    assert both.accepted == [2, 1, 4]
    assert both.emitted == [3, 2, 6]
    assert both.target_tokens == [3, 4, 7]
    assert both.rounds == [3, 4, 1]
    assert (both.fault, both.own_drafts) == ("it raised", 2.0)
    assert both.judged_at == [4, 3, 1, 1]
    assert both.accepted_at == [3, 2, 1, 1]
    assert both.seconds == {"target": 3.0, "draft": 0.5}
    assert one.calls == [1, 1]  # merging changes neither
    assert two.judged_at == [2, 1, 1, 1]
    assert both.as_dict()["mean_acceptance_length"] == 11 / 4


def test_quality_difference_by_hand():
    tags = list(TASKS) * 2
    plain = [True] * 6 + [False] * 6
    better = [True] * 9 + [False] * 3
    scores = summarize_quality(tags, better, plain)
    assert scores["overall"] == 0.75
    assert scores["difference_to_plain"] == 0.25
    spread = 1.96 * statistics.stdev([0.0] * 9 + [1.0] * 3) / 12**0.5
    assert scores["difference_ci95"] == pytest.approx([0.25 - spread, 0.25 + spread])
    assert summarize_quality(tags, plain, plain)["difference_ci95"] == [0, 0]


# --- suites ---------------------------------------------------------------------------------------


def test_suites_and_their_prompts():
    speed, quality = load_suite("speed"), load_suite("geneval-shapes")
    assert (speed.pipeline, speed.quality, quality.quality) == ("image", False, True)
    for suite in (speed, quality):
        assert suite.call == dict(guidance_scale=2.0, temperature=1.0, top_k=100, top_p=1.0)
        prompts = load_prompts(PROMPTS / suite.prompts)
        assert len(prompts) >= 600  # 100 of each task
        assert [p.tag for p in prompts[:6]] == list(TASKS)
    with pytest.raises(InputError, match="did you mean 'speed'"):
        load_suite("spead")


@pytest.mark.parametrize(
    "text", ["{", '{"prompt": "a"}', "[1]", '{"promt": "a", "tag": "b"}', None]
)
def test_unreadable_prompts(tmp_path, text):
    if text is not None:
        (tmp_path / "prompts.jsonl").write_text(text)
    with pytest.raises(InputError, match=r"prompts\.jsonl"):
        load_prompts(tmp_path / "prompts.jsonl")


def test_methods_by_name():
    assert parse_methods("plain, sjd,plain,") == {name: CONFIGS[name] for name in ("plain", "sjd")}
    for text in ("", " ,"):
        with pytest.raises(InputError, match="empty"):
            parse_methods(text)
    with pytest.raises(InputError, match="did you mean 'draft'"):
        parse_methods("plain,drafts")
