"""Parts for continuous tokens by name, and what does not go together."""

from __future__ import annotations

import pytest
import torch
from mmspec.pipelines.continuous.parts import make_gaussian_rule, make_step_drafter

from mmspec.draft.denoising.frozen import FrozenDrafter
from mmspec.draft.denoising.small_head import DenoisingDrafter
from mmspec.engine.accept.gaussian.block import GaussianBlockRule
from mmspec.engine.accept.gaussian.gamma_maximal import GammaMaximalRule
from mmspec.engine.accept.gaussian.independent import IndependentRule
from mmspec.engine.accept.gaussian.reflection import ReflectionRule
from mmspec.errors import InputError
from mmspec.methods import SpecConfig
from mmspec.models.mar.schedule import DiffusionSchedule
from mmspec.worlds.toy.linear_gaussian import LinearGaussian

SCHEDULE = DiffusionSchedule.trained("cosine").respaced(10)
SMALL = LinearGaussian.of_data(torch.ones(2, dtype=torch.float64), SCHEDULE)


@pytest.mark.parametrize(
    ("drafter", "rule", "kinds"),
    [
        ("frozen", "gamma-maximal", (FrozenDrafter, GammaMaximalRule)),
        ("denoiser", "reflection", (DenoisingDrafter, ReflectionRule)),
        ("denoiser", "gaussian-block", (DenoisingDrafter, GaussianBlockRule)),
    ],
)
def test_parts_by_name(drafter, rule, kinds):
    config = SpecConfig(drafter=drafter, rule=rule)
    made = make_step_drafter(config, SCHEDULE, 0.9, True, SMALL, torch.zeros(3, 2))
    assert isinstance(made, kinds[0])
    assert isinstance(make_gaussian_rule(config), kinds[1])


def test_plain_sampling_is_exact():
    assert make_gaussian_rule(SpecConfig("plain")).contract == "exact"


def test_softening_is_a_knob():
    rule = make_gaussian_rule(SpecConfig(drafter="aligned", rule="cspd-independent", softening=3))
    assert isinstance(rule, IndependentRule)
    assert rule.softening == 3
    with pytest.raises(InputError, match="softening must be from 1"):
        SpecConfig(softening=0.5)


@pytest.mark.parametrize(
    ("drafter", "rule", "message"),
    [
        ("model", "reflection", "do not go together"),
        ("frozen", "token", "do not go together"),
        ("frozen", "cspd-independent", "use 'aligned'"),
    ],
)
def test_what_does_not_go_together(drafter, rule, message):
    with pytest.raises(InputError, match=message):
        SpecConfig(drafter=drafter, rule=rule)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("cspd", dict(num_draft_tokens=8), "judges one iteration of drafter 'aligned' at a time"),
        ("cspd", dict(length="heuristic"), "length 'heuristic' would not be asked"),
        ("cspd-independent", dict(length="heuristic"), "length 'heuristic' would not be asked"),
        ("gamma-maximal", dict(softening=3), "softening is a setting of 'cspd-independent'"),
    ],
)
def test_settings_that_would_not_be_read(method, settings, message):
    with pytest.raises(InputError, match=message):
        SpecConfig(method, **settings)


def test_published_numbers_of_drafts():
    """γ up to 32: the most of a policy is not for a fixed length."""
    assert SpecConfig("cspd-independent", num_draft_tokens=32).resolved().num_draft_tokens == 32
    with pytest.raises(InputError, match=r"num_draft_tokens \(32\) is larger than max_draft_"):
        SpecConfig("gamma-maximal", length="heuristic", num_draft_tokens=32)


def test_vectors_and_ids_are_kept_apart():
    with pytest.raises(InputError, match="are ids"):
        SpecConfig(drafter="frozen", rule="gamma-maximal").serving("image")
    with pytest.raises(InputError, match="are vectors"):
        make_gaussian_rule(SpecConfig(method="draft"))
    with pytest.raises(InputError, match="no denoising steps"):
        make_step_drafter(SpecConfig(method="draft"), SCHEDULE)
    with pytest.raises(InputError, match="smaller head"):
        make_step_drafter(SpecConfig(drafter="denoiser", rule="reflection"), SCHEDULE)
