"""Parts for continuous tokens by name, and what does not go together."""

from __future__ import annotations

import pytest
import torch

from benchmarks.toy_chains import LinearGaussian
from mmspec.draft.denoising.frozen import FrozenDrafter
from mmspec.draft.denoising.small_head import DenoisingDrafter
from mmspec.engine.accept.gaussian.block import GaussianBlockRule
from mmspec.engine.accept.gaussian.gamma_maximal import GammaMaximalRule
from mmspec.engine.accept.gaussian.independent import IndependentRule
from mmspec.engine.accept.gaussian.reflection import ReflectionRule
from mmspec.errors import InputError
from mmspec.methods import SpecConfig
from mmspec.models.mar.schedule import DiffusionSchedule

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
    config = SpecConfig("reflection", drafter=drafter, rule=rule).resolve("continuous")
    offers = {
        "schedule": lambda: SCHEDULE,
        "temperature": lambda: 0.9,
        "small": lambda: SMALL,
        "condition": lambda: torch.zeros(3, 2),
    }
    assert isinstance(config.build_drafter(offers), kinds[0])
    assert isinstance(config.build_rule({}), kinds[1])


def test_plain_sampling_is_exact():
    assert SpecConfig("plain").resolve("continuous").contract == "exact"


def test_softening_is_a_knob():
    rule = SpecConfig("cspd-independent", softening=3).resolve("continuous").build_rule({})
    assert isinstance(rule, IndependentRule)
    assert rule.softening == 3
    with pytest.raises(InputError, match="softening must be from 1"):
        SpecConfig("cspd-independent", softening=0.5)


@pytest.mark.parametrize(
    ("drafter", "rule", "message"),
    [
        ("model", "reflection", "drafter 'model' drafts token ids, and the tokens of a model that"),
        ("frozen", "token", "rule 'token' judges token ids, and the tokens of a model that"),
        ("frozen", "cspd-independent", "use 'aligned'"),
    ],
)
def test_what_does_not_go_together(drafter, rule, message):
    with pytest.raises(InputError, match=message):
        SpecConfig("reflection", drafter=drafter, rule=rule)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("cspd", dict(num_draft_tokens=8), "judges one iteration of drafter 'aligned' at a time"),
        (
            "cspd",
            dict(length="heuristic"),
            "has no figures for what drafter 'aligned'",
        ),
        (
            "cspd-independent",
            dict(length="heuristic"),
            "has no figures for what drafter 'aligned'",
        ),
        ("gamma-maximal", dict(length="goodput"), "use 'constant' or 'auto' or 'heuristic'"),
        ("gamma-maximal", dict(softening=3), "softening is a setting of 'cspd-independent'"),
    ],
)
def test_settings_that_would_not_be_read(method, settings, message):
    with pytest.raises(InputError, match=message):
        SpecConfig(method, **settings)


def test_published_numbers_of_drafts():
    """γ up to 32: the most of a policy is not for a fixed length."""
    config = SpecConfig("cspd-independent", num_draft_tokens=32)
    assert config.resolve("continuous").draft_size().deepest == 32
    with pytest.raises(InputError, match=r"num_draft_tokens \(32\) is larger than max_draft_"):
        SpecConfig("gamma-maximal", length="heuristic", num_draft_tokens=32)


def test_vectors_and_ids_are_kept_apart():
    with pytest.raises(InputError, match="model that draws pictures are token ids; use 'null' or"):
        SpecConfig(drafter="frozen", rule="gamma-maximal")
    with pytest.raises(InputError, match=r"continuous tokens are vectors; use .*'frozen'"):
        SpecConfig("reflection", drafter="jacobi")
    small = SpecConfig("reflection", drafter="denoiser").resolve("continuous")
    with pytest.raises(InputError, match="drafter 'denoiser' needs small, and this pipeline has"):
        small.build_drafter({})
