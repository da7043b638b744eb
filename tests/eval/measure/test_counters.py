"""Counters of lines of the log: whose they are, also in logs of earlier versions."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

import pytest

from mmspec.engine.stats import SpecStats
from mmspec.eval.measure.counters import KINDS, counted_row, merged_stats
from mmspec.pipelines.continuous.stats import ContinuousStats
from mmspec.pipelines.output import ImageStats, VlmStats
from mmspec.pipelines.video.stats import VideoStats

# what every modality's lines told once
EVERYBODYS = {"sibling_calls": [], "visual_tokens": [], "draft_visual_tokens": [], "branches": []}
COUNTED = [
    ContinuousStats(pictures=2, head_calls=6, judged_by_step=[1]),
    VideoStats(made_by=[["drafter"]], parts={"draft": 1.0}, reason="none"),
    VlmStats(visual_tokens=[4], branches=[{"pooling": 1.0}]),
    ImageStats(sibling_calls=[3]),
    SpecStats("draft"),
    SpecStats("draft", pruned=[3, 8]),
    SpecStats("ml-specqd", inner=SpecStats(calls=[2], emitted=[7], judged_at=[3])),
]


@pytest.mark.parametrize("earlier", [{}, EVERYBODYS])
@pytest.mark.parametrize("stats", COUNTED, ids=lambda stats: type(stats).__name__)
def test_counters_are_read_as_what_they_were(stats, earlier):
    line = json.loads(json.dumps({"stats": {**earlier, **asdict(stats)}}))
    found = merged_stats([line])
    assert type(found) is type(stats)
    assert found == stats
    assert merged_stats([line, line]) == stats.merged([stats])


def test_merging_goes_by_the_kind_of_a_field():
    for kind in KINDS:
        assert issubclass(kind, SpecStats)
        own = {f.name for f in fields(kind)} - {f.name for f in fields(SpecStats)}
        assert own  # or it would never be known from its lines
    one, other, drawn = COUNTED[1], VideoStats(made_by=[["target"]], unjudged=2), COUNTED[0]
    both = one.merged([other, one])
    assert both.made_by == [["drafter"], ["target"], ["drafter"]]
    assert (both.parts, both.unjudged, both.reason) == ({"draft": 2.0}, 2, "none")
    part, rest = SpecStats(pruned=[1, 4]), SpecStats(pruned=[5, 6])
    assert (part.merged([rest, SpecStats()]).spared, SpecStats().spared) == (1 - 6 / 10, 0)
    twice = drawn.merged([ContinuousStats(pictures=1, judged_by_step=[2, 5])])
    assert (twice.pictures, twice.judged_by_step) == (3, [3, 5])
    assert (one.parts, drawn.judged_by_step) == ({"draft": 1.0}, [1])  # neither is changed


def test_a_row_has_the_means_that_its_modality_counts():
    image = ImageStats(calls=[4, 6], target_tokens=[8, 8], sibling_calls=[2, 5])
    row = counted_row(image, 2, shared=True)
    assert (row.nfe_per_sample, row.target_tokens_per_sample) == (5, 8)
    assert row.sibling_calls_per_sample == 3.5
    drawn = ContinuousStats(calls=[4] * 6, target_tokens=[4] * 6, pictures=2, head_calls=10)
    assert counted_row(drawn, 2, shared=False).head_calls_per_sample == 5
    assert counted_row(drawn, 2, shared=True).head_calls_per_sample is None  # of a whole batch
    assert counted_row(SpecStats(calls=[1]), 1, shared=True).sibling_calls_per_sample is None
