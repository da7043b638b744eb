"""Measures of routed blocks: shares of plain's, seconds by part, comparisons."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from mmspec.eval.measure.bootstrap import ROUNDS
from mmspec.eval.measure.equal_share import Routed, at_equal_share
from mmspec.eval.measure.quality import quality_rows
from mmspec.eval.measure.routing import _speedup_of_all, routed_rows, routing_notes
from mmspec.eval.run.samples import SampleLog
from mmspec.eval.schema import MethodResult
from mmspec.pipelines.video.stats import VideoStats

# name: family, knob, role, probability that a block is drafted, what a drafted block costs
ROWS = {
    "plain": ("plain", None, "baseline", 0.0, 0.0),
    "drafter-only": ("drafter-only", None, "sceptic", 1.0, 0.5),
    "sdvg[tau=2]": ("sdvg", "tau", "method", 0.3, 0.1),
    "sdvg[tau=1]": ("sdvg", "tau", "method", 0.6, 0.2),
    "mean[tau=1]": ("mean", "tau", "method", 0.7, 0.3),
    "random[0.5]": ("random", "draft_share", "sceptic", 0.5, 0.5),
    "random[1]": ("random", "draft_share", "sceptic", 0.9, 0.5),
}
CLIPS, BLOCKS = 24, 6


@pytest.fixture
def log(tmp_path: Path) -> SampleLog:
    """Two samples of every prompt, `order` of every third prompt alone; four clips are timed."""
    made = SampleLog(tmp_path / "samples.jsonl")
    rng = np.random.default_rng(1)
    for name, (*_, chance, cost) in ROWS.items():
        for index in range(CLIPS):
            makers = [("target", "drafter")[int(rng.random() < chance)] for _ in range(BLOCKS)]
            score = 0.9 - cost * makers.count("drafter") / BLOCKS + rng.normal(0, 0.02)
            number = index % (CLIPS // 2)
            scores = {"correctness": score} | ({"order": score / 2} if number % 3 == 0 else {})
            line = {"kind": "quality", "method": name, "index": index, "prompt": f"p{number}"}
            line |= {"tag": "move", "scores": scores, "made_by": makers}
            stats = VideoStats(made_by=[makers], calls=[9], emitted=[BLOCKS], target_tokens=[9])
            stats.seconds, stats.parts = {"encode": 0.25, "draft": 1.0}, {"draft": 0.5 + index}
            told = {"method": name, "stats": asdict(stats)}
            lines = [line, {"kind": "counts", **told}]
            if index < 4:
                lines.append({"kind": "speed", "seconds": 5.0 + index, **told})
            made.add(f"{name}/{index}", lines)
    return SampleLog(made.path)  # as a run that goes on reads it


@pytest.fixture
def rows(log):
    found = quality_rows(log.of("quality"), log.of("counts"), list(ROWS), None)
    for name, row in found.items():
        row.family, row.knob, row.role = ROWS[name][:3]
    routed_rows(found, log)
    return found


def by_prompt(log, name, read) -> np.ndarray:
    """Means `[12]` over each prompt's two samples."""
    lines = sorted((x for x in log.of("quality") if x["method"] == name), key=lambda x: x["index"])
    return np.array([read(line) for line in lines]).reshape(2, -1).mean(0)


def score(line):
    return line["scores"]["correctness"]


def drafted(line):
    return sum(maker == "drafter" for maker in line["made_by"]) / BLOCKS


def test_shares_of_plain(log, rows):
    name = "sdvg[tau=1]"
    mine, plain = by_prompt(log, name, score), by_prompt(log, "plain", score)
    found = rows[name].quality["correctness"]
    assert found.share_of_plain == pytest.approx(mine.mean() / plain.mean())
    rng = np.random.default_rng(0)
    many = [mine[i].mean() / plain[i].mean() for i in rng.integers(0, 12, (ROUNDS, 12))]
    assert found.share_ci95 == pytest.approx(tuple(np.percentile(many, [2.5, 97.5])))
    few = rows[name].quality["order"]  # four prompts: a share, and no interval
    having = [i for i in range(12) if i % 3 == 0]
    assert few.share_of_plain == pytest.approx(mine[having].sum() / plain[having].sum())
    assert few.share_ci95 is None
    assert rows["plain"].quality["correctness"].share_of_plain is None


def test_who_made_the_blocks_and_what_took_the_time(log, rows):
    for name, row in rows.items():
        assert row.drafted_share == pytest.approx(by_prompt(log, name, drafted).mean())
        # of the four timed clips: 6.5 s each, 0.25 of them reading, 2 drafting
        assert row.phase_seconds == pytest.approx({"encode": 0.25, "draft": 2.0, "rest": 4.25})


def test_the_speedup_of_all_clips_is_no_median():
    """Two of eight clips take as long as by plain decoding, and a half of all the time."""
    lines = {"plain": [2.0] * 8, "sdvg": [0.5] * 6 + [2.0] * 2}
    of = {n: [{"seconds": s} for s in seconds] for n, seconds in lines.items()}
    row = MethodResult("lossy", 8, 1.0, 1.0, 1.0, [], {})
    _speedup_of_all(row, of["plain"], of["sdvg"])
    assert row.speedup == row.speedup_of_all == pytest.approx(16 / 7)
    assert row.speedup_interval == row.speedup_of_all_ci95
    low, high = row.speedup_of_all_ci95
    assert 1 < low < 16 / 7 < high <= 4
    _speedup_of_all(
        few := MethodResult("lossy", 2, 1.0, 1.0, 1.0, [], {}), of["plain"][:2], of["sdvg"][:2]
    )
    assert (few.speedup_of_all, few.speedup_of_all_ci95) == (4.0, None)


def test_methods_against_each_other_and_against_chance(log, rows):
    def routed(name):
        return Routed(name, by_prompt(log, name, drafted), by_prompt(log, name, score))

    families = {
        "sdvg": ["sdvg[tau=2]", "sdvg[tau=1]"],
        "mean": ["mean[tau=1]"],
        "random": ["random[0.5]", "random[1]"],
    }
    for own in families:
        for name in families[own]:
            assert list(rows[name].at_equal_share) == [f for f in families if f != own]
            for family, found in rows[name].at_equal_share.items():
                rungs = [routed(other) for other in ("plain", *families[family])]
                assert found == at_equal_share(routed(name), rungs)
    assert rows["sdvg[tau=1]"].at_equal_share["random"].ci95[0] > 0
    for name in ("plain", "drafter-only"):
        assert not rows[name].at_equal_share


def test_reuse_against_chance_at_equal_shares(log):
    """Rows that reuse are compared among themselves, and rows that draft as if these were not."""
    cost, shares = {"sdvg": 0.1, "random": 0.5}, {"sdvg": 0.3, "random": 0.6}
    lines = []
    for line in log.of("quality"):
        family = line["method"].partition("[")[0]
        if family in (*cost, "plain"):
            share = shares.get(family, 0.0) + 0.01 * (line["index"] % 3) * (family != "plain")
            scores = {"correctness": 0.9 - cost.get(family, 0.0) * share}
            lines.append({**line, "made_by": ["target"], "reused_share": share, "scores": scores})
    names = [name for name in ROWS if name.partition("[")[0] in (*cost, "plain")]
    counts = [line for line in log.of("counts") if line["method"] in names]
    for line in counts:
        reused = [30] if line["method"].startswith("sdvg") else [0]
        line["stats"] |= {"made_by": [["target"]], "layers": [70], "reused_layers": reused}
    log.lines = [*lines, *counts]
    rows = quality_rows(lines, counts, names, None)
    for name, row in rows.items():
        row.family, row.knob, row.role = ROWS[name][:3]
    routed_rows(rows, log)
    found = rows["sdvg[tau=1]"].at_equal_share
    assert list(found) == ["random"]
    wanted = (cost["random"] - cost["sdvg"]) * 0.31  # for as much reuse
    assert found["random"].value == pytest.approx(wanted, abs=1e-9)
    assert rows["plain"].reused_share is None
    assert rows["sdvg[tau=1]"].reused_share == pytest.approx(0.3)
    assert not rows["plain"].at_equal_share


def test_a_target_without_quality_has_no_shares(log):
    lines = [{**x, "scores": {"motion": 0.0}} for x in log.of("quality")]
    found = quality_rows(lines, log.of("counts"), list(ROWS), None)
    log.lines = [*lines, *log.of("counts")]
    routed_rows(found, log)
    assert all(row.quality["motion"].share_of_plain is None for row in found.values())
    # nobody timed them: seconds of the judged clips, without a rest
    assert found["plain"].phase_seconds == pytest.approx({"encode": 0.25, "draft": 12.0})


def test_failures_are_told(log, rows):
    assert routing_notes(log, rows) == []
    lines = [x for x in log.of("counts") if x["method"] == "sdvg[tau=2]"]
    lines[0]["stats"] |= {"unjudged": 2, "reason": "no weights"}
    lines[1]["stats"] |= {"unjudged": 1, "fault": "no numbers"}
    assert routing_notes(log, rows) == [
        "sdvg[tau=2]: 3 blocks were rejected because the reward failed: no weights",
        "sdvg[tau=2]: the drafter was given up: no numbers",
    ]
