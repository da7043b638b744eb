"""Pictures as somebody takes them for who sees badly."""

from __future__ import annotations

import numpy as np
import pytest

from mmspec.worlds.shapes.charts import Chart, held_out_value
from mmspec.worlds.shapes.exchanges import exchange_about, sample_picture, score_long
from mmspec.worlds.shapes.scene import shows_unseen
from mmspec.worlds.shapes.witness import mistaken

KINDS = ["description", "bar_chart", "line_chart", "pie_chart"]


@pytest.mark.parametrize("kind", KINDS)
def test_without_mistakes_it_is_the_picture(kind):
    rng = np.random.default_rng(0)
    for _ in range(20):
        picture = sample_picture(rng, kind)
        assert mistaken(rng, picture, 0.0) == picture


@pytest.mark.parametrize("kind", KINDS)
def test_mistakes_make_valid_pictures_of_the_split(kind):
    rng = np.random.default_rng(1)
    changed = 0
    for _ in range(60):
        picture = sample_picture(rng, kind)
        taken = mistaken(rng, picture, 0.5)
        changed += taken != picture
        if isinstance(picture, Chart):
            assert isinstance(taken, Chart)
            assert len(set(taken.values)) == len(picture.values)
            assert sorted(taken.labels) == sorted(picture.labels)
            assert not any(map(held_out_value, taken.labels, taken.values))
        else:
            assert not shows_unseen(taken.items)
            where = sorted((i.x, i.y, i.size) for i in picture.items)
            assert sorted((i.x, i.y, i.size) for i in taken.items) == where
    assert changed > 30


def test_more_mistakes_are_less_true():
    truth = []
    for share in (0.0, 0.1, 0.4):
        rng, scores = np.random.default_rng(2), []
        for _ in range(40):
            picture = sample_picture(rng, "description")
            said = exchange_about(rng, mistaken(rng, picture, share), "description")
            assert said is not None
            scores.append(score_long(said.answer, picture).truthfulness)
        truth.append(np.mean(scores))
    assert truth[0] == 1
    assert truth[0] > truth[1] + 0.05 > truth[2] + 0.1
