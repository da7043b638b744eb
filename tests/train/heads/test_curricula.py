"""Curricula of draft heads: what a step learns, by the part of the run that is over."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from mmspec.methods.parts.heads import BRANCHES
from mmspec.train import recipes
from mmspec.train.heads.curricula import CURRICULA, drawn_branch


def test_every_head_has_a_curriculum_and_a_stage():
    assert set(CURRICULA) == set(recipes.STAGES["vlm-head"])


@pytest.mark.parametrize(
    ("done", "share"), [(0.0, 0), (0.1, 0), (0.2, 0.25), (0.3, 0.5), (0.5, 1), (1, 1)]
)
def test_msd_shows_pictures_ever_more_often(done, share):
    rng = np.random.default_rng(0)
    seen = np.mean([CURRICULA["msd"](done, rng)[0] for _ in range(2000)])
    assert seen == pytest.approx(share, abs=0.04 if 0 < share < 1 else 0)


def test_vispec_goes_two_stages():
    rng = np.random.default_rng(0)
    turns = [CURRICULA["vispec"](done, rng) for done in (0.0, 0.49, 0.5, 1.0)]
    assert [how.get("laws", False) for _, how in turns] == [False, False, True, True]
    assert [how["depth"] for _, how in turns] == [1, 1, 2, 2]


@pytest.mark.parametrize("method", ["eagle", "msd", "specvlm", "flash"])
def test_laws_come_after_hidden_states(method):
    rng = np.random.default_rng(0)
    turns = [CURRICULA[method](done, rng)[1]["laws"] for done in (0.0, 0.49, 0.5, 1.0)]
    assert turns == [False, False, True, True]


def test_levels_take_turns():
    rng = np.random.default_rng(0)
    drawn = Counter(CURRICULA["eagle"](0.0, rng)[1]["depth"] for _ in range(2000))
    assert {depth: round(count / 500) for depth, count in drawn.items()} == {1: 2, 2: 1, 3: 1}


def test_every_branch_of_specvlm_learns_whatever_its_gate_prefers():
    rng = np.random.default_rng(0)
    drawn = Counter(drawn_branch(rng) for _ in range(6000))
    assert {*drawn} == {"gate", "whole", *BRANCHES}
    assert drawn.pop("gate") == pytest.approx(3000, rel=0.1)
    assert all(count == pytest.approx(500, rel=0.2) for count in drawn.values())
