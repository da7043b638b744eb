"""Scores of the steps of a description add up to what is true of all of it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mmspec.worlds.shapes.exchanges import LONG_KINDS, sample_exchange, score_long, score_step


@pytest.mark.parametrize("kind", LONG_KINDS)
def test_true_steps_and_false_ones(kind):
    """Every sentence of a true description is true; one of another picture's mostly is not."""
    rng = np.random.default_rng(7)
    strange = []
    for _ in range(8):
        picture, exchange = sample_exchange(rng, kind)
        other, _ = sample_exchange(rng, kind)
        text, wrong = "", 0.0
        for step in re.findall(r"[^.;!?]*[.;!?]\s*", exchange.answer):
            assert score_step(text, step, picture) == 1
            share = score_step(text, step, other)
            assert 0 <= share <= 1
            strange.append(share)
            wrong += share < 1
            text += step
        assert (score_long(text, other).truthfulness < 1) == (wrong > 0)
    assert np.mean(strange) < 0.8
    assert score_step("", "This is nothing at all.", picture) == 0
    assert score_step("", "", picture) == 1
