"""Speed: paired timing, the ideal, and the rows by hand."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mmspec.engine.stats import SpecStats
from mmspec.eval.measure.counters import accepted_lengths
from mmspec.eval.measure.ideal_speedup import BareCosts, call_seconds, ideal_seconds
from mmspec.eval.measure.speed import mean_costs, noise_notes, speed_rows
from mmspec.eval.measure.timing import Sample, paired_runs
from mmspec.eval.schema_parts import Throughput
from mmspec.eval.showcase import _row
from mmspec.methods import SpecConfig
from mmspec.pipelines.continuous.stats import ContinuousStats

# --- paired runs ----------------------------------------------------------------------------------


class FakePipe:
    """Records who drew what, in which order, from which seed."""

    def __init__(self) -> None:
        self.speculation = SpecConfig(method="sjd", window=3)
        self.device = torch.device("cpu")
        self.log: list[tuple[str, str, int]] = []

    def enable_speculation(self, config: SpecConfig) -> None:
        self.speculation = config

    def __call__(self, prompt, generator, **call):
        assert call == {"top_k": 5}
        (seed,) = (g.initial_seed() for g in generator)
        self.log.append((self.speculation.method, prompt, seed))
        return SimpleNamespace(stats=SpecStats(self.speculation.method))


CONFIGS = {name: SpecConfig(method=name) for name in ("plain", "draft", "sjd")}


def test_methods_take_turns_on_the_same_seeds():
    pipe = FakePipe()
    samples = paired_runs(pipe, CONFIGS, ["a", "b", "c", "d"], 10, {"top_k": 5}, warmup=2)
    rounds = [pipe.log[i : i + 3] for i in range(0, len(pipe.log), 3)]
    assert len(rounds) == 2 + 4
    assert all(sorted(m for m, *_ in r) == ["draft", "plain", "sjd"] for r in rounds)
    assert [r[0][1:] for r in rounds] == [*[("a", 10)] * 3, ("b", 11), ("c", 12), ("d", 13)]
    assert all(len({case[1:] for case in r}) == 1 for r in rounds)
    first = [r[0][0] for r in rounds[2:]]
    assert first == ["plain", "draft", "sjd", "plain"]  # nobody always goes first
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
    # a tree of 48 of its nodes at most: 5 levels had 68, 4 had 52 and 3 had 36; of each level the
    # drafter reads the 4 that get children
    tree = SpecConfig(method="dynamic-tree", siblings="without-replacement", tree_nodes=48)
    drafted = sum(drafter(1 + nodes) for nodes in (0, 4, 8, 12, 16))
    assert ideal_seconds(tree, counted([48]), target, drafter) == target(49) + drafted


def test_bare_costs_lie_on_lines_and_are_renewed(monkeypatch):
    asked: list[int] = []

    def measured(decoder, rows, grid, n, **how):
        asked.append(n)
        return float(n * n + len(asked))

    monkeypatch.setattr("mmspec.eval.measure.ideal_speedup.measure_forward", measured)
    costs = BareCosts(None, 2, 16)
    assert costs(5) == costs(5) == 26
    assert costs(7) == pytest.approx((26 + 83) / 2)  # 5² + 1 and 9² + 2
    assert asked == [5, 9]
    costs.renew()
    assert costs(9) == 84
    assert costs.now == {9: 84}


def test_tree_drafter_costs_a_pass_a_level():
    target, drafter = costs(10, 1), costs(2, 0.5)
    config = SpecConfig(method="tree", tree_widths=(2, 1, 1))
    # T(7); the drafter reads 1, then the root and 2 nodes, then the root and 4
    assert ideal_seconds(config, counted([6]), target, drafter) == 16 + 2 + 3 + 4
    assert ideal_seconds(config, counted([2, 0]), target, drafter) == 12 + 2 + 10


def test_call_seconds(monkeypatch):
    """The first three calls don't count; the device on which they are is waited for."""
    clock = iter([0, 50, 100, 200, 201, 300, 302, 400, 490])
    fake = SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr("mmspec.eval.measure.ideal_speedup.time", fake)
    calls, waited = [], []
    monkeypatch.setattr("mmspec.eval.measure.ideal_speedup.wait", waited.append)
    assert call_seconds(lambda: calls.append(1), 3, "cuda:1") == [1, 2, 90]
    assert len(calls) == 6
    assert waited == [torch.device("cuda:1")] * 12


# --- rows -----------------------------------------------------------------------------------------


def sample(rounds, decode, around, **stats) -> Sample:
    """Sample whose loop took `decode` seconds and whose call took `around` more."""
    seconds = {"encode": around / 2, "prefill": around / 2, "draft": 0.0, "verify": 0.0}
    seconds |= {"target": decode * 0.75, "update": decode * 0.25}
    stats = {"rounds": rounds, "scored": len(rounds), **stats}
    counters = SpecStats("sjd", "exact", seconds=seconds, **stats)
    return Sample("p", 0, decode + around, counters, None)


def plain_sample(decode: float) -> Sample:
    counters = dict(calls=[8], drafted=[0], accepted=[0], emitted=[8], target_tokens=[8])
    return sample([0] * 8, decode, 2.0, **counters)


def lines_of(name: str, samples: list[Sample], batch: int = 1) -> list[dict]:
    """Lines of the log, their ideal by T(n) = 1 + (n − 1) / 2, as they are read back."""
    lines = []
    for i, one in enumerate(samples):
        bare = ideal_seconds(CONFIGS[name], counted(one.stats.rounds), costs(1, 0.5), None)
        line = {"method": name, "index": i, "batch": batch, "seconds": one.seconds}
        line |= {"decode_seconds": one.decode_seconds, "bare_seconds": bare}
        line |= {"peak_memory": 100 + i, "energy": None if i else 4.0, "stats": asdict(one.stats)}
        lines.append(line | {"costs": {"target": {"1": i, "17": 2 * i}}})
    return json.loads(json.dumps(lines))


def test_calls_that_nobody_counted_tell_nothing_of_the_target():
    one = dict(calls=[4], drafted=[8], accepted=[4], emitted=[8], target_tokens=[12])
    plain = plain_sample(8.0)
    plain.stats.scored = 0
    lines = lines_of("sjd", [sample([2] * 4, 4.0, 2.0, **one)]) + lines_of("plain", [plain])
    rows = speed_rows(lines, {name: CONFIGS[name] for name in ("plain", "sjd")})
    assert rows["sjd"].target_efficiency is None


def test_rows_by_hand():
    plain = [plain_sample(8.0), plain_sample(12.0), plain_sample(16.0)]
    one = dict(drafted=[4], accepted=[5], emitted=[8], judged_at=[3, 2, 0], accepted_at=[3, 1, 0])
    fast = [
        sample([1, 2, 1], 4.0, 2.0, calls=[3], target_tokens=[7], **one),
        sample([3, 1], 4.0, 6.0, calls=[2], target_tokens=[6], **one),
        sample([2], 16.0, 2.0, calls=[4], target_tokens=[8], **{**one, "judged_at": [4]}),
    ]
    fast[2].stats.accepted_at = [1]
    lines = lines_of("sjd", fast) + lines_of("plain", plain)
    methods = {name: CONFIGS[name] for name in ("plain", "sjd")}
    rows = speed_rows(lines[::-1], methods)  # whatever the order
    row, base = rows["sjd"], rows["plain"]
    assert (row.contract, row.n, row.n_speed, row.nfe_per_sample) == ("exact", 3, 3, 3)
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
    assert row.speedup_ci95 is None  # three pairs prove nothing
    # bare passes: T(2)+T(3)+T(2) = 5, T(4)+T(2) = 4, T(3) = 2
    assert row.ideal_speedup == statistics.median([8 / 5, 12 / 4, 16 / 2])
    assert row.engine_efficiency == 2 / 3
    # 0.75 of 24 s in 6 rounds, and of 36 s in 24 rounds of one token
    assert row.target_efficiency == pytest.approx((36 / 24) / (24 / 6))
    assert base.target_efficiency is None
    assert (row.peak_memory_bytes, row.energy_joules_per_sample) == (102, 4.0)

    assert row.accepted_lengths == pytest.approx([3 / 10, 5 / 10, 2 / 10])
    assert (row.outputs_per_second, row.tokens_per_second) == (3 / (6 + 10 + 18), 24 / 24)
    assert (base.outputs_per_second, base.tokens_per_second) == (3 / (10 + 14 + 18), 24 / 36)
    assert base.accepted_lengths == []
    assert row.seconds_p95 is None  # of three calls there is no slowest twentieth

    assert base.speedup_median is base.speedup_ci95 is base.speedup_end_to_end_median is None
    assert base.ideal_speedup == 12 / 8
    assert base.engine_efficiency == pytest.approx(8 / 12)
    assert mean_costs(lines) == {"target": {1: 1, 17: 2}}
    notes = noise_notes(lines, rows)
    assert notes == []
    many = lines_of("sjd", fast * 2) + lines_of("plain", plain * 2)
    rows = speed_rows(many, methods)
    assert rows["sjd"].speedup_ci95 == (1, 3)
    notes = noise_notes(many, rows)
    assert "sjd: the speed-up's interval holds 1: neither faster nor slower" in notes


def test_the_ideal_is_of_as_many_tokens():
    """A sampled answer of half the tokens is no faster for that, ideally or measured."""
    one = dict(drafted=[4], accepted=[1], judged_at=[3], accepted_at=[1], calls=[2])
    short = sample([2, 2], 4.0, 2.0, emitted=[4], target_tokens=[6], **one)
    lines = lines_of("sjd", [short]) + lines_of("plain", [plain_sample(8.0)])
    row = speed_rows(lines, {name: CONFIGS[name] for name in ("plain", "sjd")})["sjd"]
    assert row.ideal_speedup == (8 / 8) / (4 / 4)  # bare passes: T(3) + T(3) = 4
    assert row.speedup_median == row.engine_efficiency == 1


def test_the_slowest_twentieth():
    """The twentieth of 21 calls of 2 to 22 s takes 21 s, more than 95 % of the others."""
    plain = [plain_sample(1.0) for _ in range(21)]
    for i, one in enumerate(plain):
        one.seconds = 2.0 + i
    (row,) = speed_rows(lines_of("plain", plain), ["plain"]).values()
    assert (row.seconds_median, row.seconds_p95) == (12, 21)


def test_accepted_lengths_are_those_that_were_counted():
    rng, stats, counted = np.random.default_rng(0), SpecStats("sjd"), Counter[int]()
    stats.start(2)
    for _ in range(50):
        reach = rng.integers(1, 5, 2)
        kept = [int(rng.integers(0, n + 1)) for n in reach]
        counted.update(kept)
        stats.observe(4, reach.tolist(), reach.tolist(), kept, [k + 1 for k in kept])
    found = accepted_lengths(stats)
    assert found == pytest.approx([counted[n] / 100 for n in range(len(found))])
    assert sum(found) == pytest.approx(1)
    assert accepted_lengths(SpecStats()) == []


def test_throughput_by_hand():
    plain = [plain_sample(8.0), plain_sample(16.0)]
    fast = [plain_sample(4.0), plain_sample(4.0)]
    lines = [*lines_of("sjd", fast), *lines_of("plain", plain)]
    lines += [*lines_of("sjd", fast, 8), *lines_of("plain", plain, 8)]
    rows = speed_rows(lines, {name: CONFIGS[name] for name in ("plain", "sjd")})
    assert rows["sjd"].throughput == {8: Throughput(2, 2.0, 3.0, None)}
    assert rows["plain"].throughput == {8: Throughput(2, 0.75)}


def test_continuous_tokens_are_compared_token_by_token():
    """Half the denoising steps for the same tokens is twice as fast, not as fast a step."""
    lines = []
    for name, steps, seconds in (("plain", 10, 4.0), ("sjd", 5, 2.0)):
        for index, batch in ((0, 1), (0, 2)):
            stats = ContinuousStats(pictures=batch)
            stats.observe_backbone(batch)
            stats.observe_plain(16 * batch, steps, 2)
            stats.seconds = {"target": seconds * 0.75, "backbone": seconds * 0.25}
            line = {"method": name, "index": index, "batch": batch, "seconds": seconds}
            line |= {"decode_seconds": seconds, "bare_seconds": None, "costs": {}}
            lines.append(line | {"peak_memory": None, "energy": None, "stats": asdict(stats)})
    rows = speed_rows(lines, ["plain", "sjd"])
    assert rows["sjd"].speedup_median == 2
    assert (rows["plain"].head_calls_per_sample, rows["plain"].head_rows_per_sample) == (10, 320)
    assert (rows["sjd"].nfe_per_sample, rows["sjd"].mean_acceptance_length) == (5, 1)
    assert rows["sjd"].throughput == {2: Throughput(1, 16.0, 2.0, None, 5)}
    assert rows["plain"].throughput == {2: Throughput(1, 8.0, head_calls=10)}


@pytest.mark.parametrize(("spread", "noisy"), [(0.05, False), (0.3, True)])
def test_noise_is_said(spread, noisy):
    times = [1 - spread, 1.0, 1.0 + spread, 1.0, 1 - spread, 1 + spread]
    stats = {"emitted": [16]}
    lines = [{"method": "plain", "decode_seconds": t, "batch": 1, "stats": stats} for t in times]
    # these may vary
    lines += [{"method": "sjd", "decode_seconds": 10.0 * i, "batch": 1} for i in range(9)]
    lines += [{"method": "plain", "decode_seconds": 8.0 * t, "batch": 8} for t in times]
    assert any("noisy" in note for note in noise_notes(lines, {})) == noisy


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
