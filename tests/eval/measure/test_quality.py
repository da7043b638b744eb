"""Quality rows by hand: scores, pairs, intervals, verdicts, distances of sets."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from mmspec.engine.stats import SpecStats
from mmspec.eval.measure.quality import compare_scores, quality_rows, set_quality
from mmspec.eval.metrics.frechet import FID
from mmspec.eval.metrics.kid import KID
from mmspec.worlds.shapes.vocabulary import TASKS


def lines_of(method: str, scores: list[float], tags=TASKS, metric="geneval") -> list[dict]:
    return [
        {
            "method": method,
            "index": i,
            "tag": tags[i % len(tags)],
            "prompt": f"prompt {i}",
            "scores": {metric: score},
        }
        for i, score in enumerate(scores)
    ]


def test_geneval_is_the_mean_of_its_tasks():
    """Tasks of unequal size weigh the same."""
    tags = ["colors"] * 30 + ["position"] * 10
    right = [1.0] * 15 + [0.0] * 15 + [1.0] * 9 + [0.0]
    lines = [
        {"tag": t, "scores": {"geneval": s}, "index": i, "prompt": str(i)}
        for i, (t, s) in enumerate(zip(tags, right, strict=True))
    ]
    found = compare_scores("geneval", lines, None, 0.02)
    assert found.value == pytest.approx((0.5 + 0.9) / 2)
    assert found.parts == {"colors": 0.5, "position": 0.9}
    assert found.difference_to_plain is found.difference_ci95 is None
    assert found.verdict == ""
    low, high = found.ci95
    assert low < found.value < high
    other = compare_scores(
        "clip_score",
        [{**x, "scores": {"clip_score": x["scores"]["geneval"]}} for x in lines],
        None,
        None,
    )
    assert other.value == pytest.approx(24 / 40)
    assert other.parts == {}


def test_difference_is_taken_in_pairs():
    """A method that is right where plain is, and once more, is surely no worse; its own interval
    alone would not show that."""
    dice = np.random.default_rng(0)
    plain = (dice.random(600) < 0.5).astype(float)
    better = plain.copy()
    better[:12] = 1.0
    mine, theirs = lines_of("sjd", better.tolist()), lines_of("plain", plain.tolist())
    found = compare_scores("geneval", mine, theirs, 0.02)
    assert found.difference_to_plain == pytest.approx(float((better - plain).mean()))
    low, high = found.difference_ci95
    assert 0 <= low <= found.difference_to_plain <= high < 0.03
    assert found.verdict == "no loss"
    assert found.ci95[0] < theirs_mean(plain) < found.ci95[1]
    assert found.share_of_plain == pytest.approx(better.mean() / plain.mean())
    assert 1 <= found.share_ci95[0] < found.share_of_plain < found.share_ci95[1] < 1.06
    assert compare_scores("clip_score", renamed(mine), renamed(theirs), 0.02).share_ci95 is None
    worse = compare_scores("geneval", theirs, mine, 0.001)
    assert worse.difference_ci95 == pytest.approx((-high, -low), abs=1e-3)
    assert worse.verdict == "worse"
    noise = lines_of("sjd", np.roll(plain, 6).tolist())  # the same score, on other prompts
    assert compare_scores("geneval", noise, theirs, 0.02).verdict == "undecided"


def renamed(lines: list[dict]) -> list[dict]:
    """Scores of another metric, whose zero means nothing."""
    return [{**x, "scores": {"clip_score": x["scores"]["geneval"]}} for x in lines]


def theirs_mean(values) -> float:
    return float(np.mean(values))


def test_few_samples_have_no_interval():
    """A task with one sample has no interval: each resample is the sample itself."""
    few = lines_of("sjd", [1.0] * 6)
    found = compare_scores("geneval", few, lines_of("plain", [0.0] * 6), 0.02)
    assert (found.value, found.difference_to_plain) == pytest.approx((1.0, 1.0))
    assert found.ci95 is found.difference_ci95 is None
    assert found.verdict == "undecided"


def test_a_sample_without_a_figure_counts_in_neither():
    """Pairs are of one sample, whatever each side lacks."""
    plain, mine = lines_of("plain", [0.0, 1.0] * 30), lines_of("sjd", [0.0, 1.0] * 30)
    plain[0]["scores"]["geneval"] = mine[7]["scores"]["geneval"] = None
    found = compare_scores("geneval", mine, plain, 0.02)
    assert found.difference_to_plain == 0
    for line in plain:
        line["scores"] = {}
    assert compare_scores("geneval", mine, plain, 0.02) is None


def test_an_interval_is_of_the_samples_of_its_mean():
    """Tokens a call, of lines that tell what each sample's calls have emitted."""
    lines = lines_of("plain", [1.0] * 12)
    for n, line in enumerate(lines):
        line |= {"nfe": 4, "emitted": 8 + n % 2}
    counts = [{"method": "plain", "stats": asdict(SpecStats(calls=[48], emitted=[102]))}]
    row = quality_rows(lines, counts, ["plain"], None)["plain"]
    low, high = row.mean_acceptance_length_ci95
    assert 2 <= low < row.mean_acceptance_length == 102 / 48 < high <= 9 / 4
    del lines[3]["emitted"]
    assert quality_rows(lines, counts, ["plain"], None)["plain"].mean_acceptance_length_ci95 is None


def test_rows_stand_on_common_samples():
    plain, sjd = lines_of("plain", [1.0] * 60), lines_of("sjd", [0.0] * 84)
    stats = SpecStats("x", "exact", calls=[4, 2], emitted=[8, 8], target_tokens=[10, 20])
    stats.judged_at, stats.accepted_at, stats.seconds = [4, 2], [2, 2], {"target": 1.0}
    counts = [{"method": m, "stats": asdict(stats)} for m in ("plain", "sjd", "sjd")]
    rows = quality_rows(sjd[::-1] + plain, counts, ["plain", "sjd"], ("geneval", 0.02))
    assert {row.n for row in rows.values()} == {60}
    row = rows["sjd"]
    assert (row.nfe_per_sample, row.mean_acceptance_length) == (3, 16 / 6)
    assert (row.target_tokens_per_sample, row.acceptance_by_position) == (15, [0.5, 1.0])
    assert row.phase_seconds == {"target": 0.5}
    assert row.quality["geneval"].difference_to_plain == -1
    assert row.quality["geneval"].difference_ci95 == pytest.approx((-1.05, -0.95))  # 3 of 60
    assert row.quality["geneval"].verdict == "worse"
    other = quality_rows(sjd + plain, counts, ["plain", "sjd"], ("clip_score", 0.02))
    assert other["sjd"].quality["geneval"].verdict == ""  # the margin is another metric's


@pytest.mark.parametrize("metric", [FID, KID])
def test_distances_of_sets(metric):
    rng = np.random.default_rng(0)
    truth, near = rng.normal(size=(400, 4)), rng.normal(size=(400, 4))
    far = rng.normal(size=(400, 4)) * 1.5 + 1
    distance = metric.to_reference(truth)
    found = set_quality(distance, far, near, rounds=50)
    assert found.value == distance(far) > distance(near)
    assert found.difference_to_plain == pytest.approx(distance(far) - distance(near))
    low, high = found.difference_ci95
    assert 0 < low < found.difference_to_plain < high
    assert not found.larger_is_better
    assert found.ci95 is None
    same = set_quality(distance, near, near, rounds=20)
    assert (same.difference_to_plain, same.difference_ci95) == (0, (0, 0))
    alone = set_quality(distance, far, None, rounds=20)
    assert (alone.difference_to_plain, alone.difference_ci95) == (None, None)
    assert set_quality(distance, far, near, rounds=0).difference_ci95 is None


def test_frechet_of_gaussians_in_closed_form():
    """Shift and scale of one feature: (Δmean)² + (σ₁ − σ₂)², with the samples' own moments."""
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(500, 1)), rng.normal(2, 3, size=(500, 1))
    gap = (a.mean() - b.mean()) ** 2 + (a.std(ddof=1) - b.std(ddof=1)) ** 2
    both = [np.hstack([x, x * 0 + rng.normal(size=(500, 1)) * 1e-9]) for x in (a, b)]
    assert FID.to_reference(both[0])(both[1]) == pytest.approx(gap, rel=1e-6)
