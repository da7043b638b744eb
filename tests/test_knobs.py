"""Which knobs a configuration reads, against the parts that are made of it; what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import copy
from dataclasses import fields, replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmspec.knobs import KNOBS, knobs_of
from mmspec.pipelines.continuous.parts import make_gaussian_rule, make_step_length

from mmspec import SpecConfig
from mmspec.engine.length.goodput import Experience
from mmspec.errors import InputError
from mmspec.eval.suite import SUITES, load_suite
from mmspec.methods import METHODS
from mmspec.methods.names import config_of
from mmspec.models.token_grid import TokenGrid
from mmspec.pipelines.parts import make_drafter, make_length, make_rule
from mmspec.pipelines.video.speculation import make_routing_rule

PARTS = ("method", "drafter", "rule", "length", "head", "draft_compressor", "target_compressor")
OTHER: dict[str, Any] = {  # than the default
    "num_draft_tokens": 3,
    "max_draft_tokens": 19,
    "window": 5,
    "draft_rows": 2,
    "jacobi_init": "uniform",
    "exit_layer": 2,
    "confidence": 0.3,
    "rejection": 0.3,
    "tree_widths": (2, 2),
    "tree_depth": 3,
    "tree_width": 2,
    "tree_beam": 2,
    "tree_nodes": 9,
    "siblings": "top",
    "merge": ("lookup", "tree"),
    "zipar_window": 3,
    "neighbours": 3,
    "lantern_delta": 0.3,
    "lantern_lambda": 3.0,
    "lantern_variant": "released",
    "softening": 2.0,
    "group_size": 3,
    "group_probability": 0.3,
    "group_distance": 0.3,
    "cool_delta": 2.0,
    "cool_nu": 0.3,
    "cool_length": 3,
    "local_threshold": 0.3,
    "local_radius": 2,
    "local_criterion": "ratio",
    "local_advance": 3,
    "local_slips": 3,
    "frame_rule": "mean",
    "tau": 3.0,
    "draft_share": 0.3,
    "target_quality": 3.0,
}
CODES = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))


def of_ids(config: SpecConfig) -> list[Any]:
    length = make_length(config, lambda: Experience([1.0] * (config.extent.deepest + 1)))
    rule = make_rule(config, 1.0, lambda: CODES)
    target: Any = SimpleNamespace(layers=4, embeddings=CODES)
    grid = TokenGrid(4, 4)
    drafter = make_drafter(config, target, target, 12, grid, length, list, target)
    return [rule, None if config.unverified else length, drafter]


def of_steps(config: SpecConfig) -> list[Any]:
    return [make_gaussian_rule(config), make_step_length(config)]


def of_blocks(config: SpecConfig) -> list[Any]:
    return [make_routing_rule(config)]


def told(part: Any) -> Any:
    """What a part holds, all the way down."""
    if isinstance(part, torch.Tensor):
        return part.tolist()
    if isinstance(part, list | tuple):
        return [told(each) for each in part]
    if type(part).__module__.startswith("mmspec"):
        return [type(part).__name__, {name: told(value) for name, value in vars(part).items()}]
    return part if isinstance(part, str | int | float | None) else type(part).__name__


def read_by(make: Callable[[SpecConfig], list[Any]], config: SpecConfig, knobs: set[str]) -> set:
    """The knobs with which other parts are made."""
    found = set()
    for knob in knobs:
        changed, other = copy(config), OTHER[knob]
        if other == getattr(config, knob):
            other = {"ratio": "threshold"}[other]
        object.__setattr__(changed, knob, other)  # which would be refused unless it is read
        if told(make(changed)) != told(make(config)):
            found.add(knob)
    return found


CHAINS = ("model", "early-exit", "lookup", "jacobi", "coupled-jacobi", "gumbel-jacobi")
GROWN = ("tree", "dynamic-tree", "merged", "recycling")
RULES = ("token", "block", "lantern", "lantern++", "grouped", "cool")
LENGTHS = ("constant", "heuristic", "goodput", "confidence", "specdec++")
# read by the pipeline itself: see where `Drawing`, `TokenTarget` and `VideoRun` are made
ELSEWHERE = {"upsampler", "draft_guidance", "draft_temperature", "local_turns", "local_window"}
ELSEWHERE |= {"branch", "reward", "forced_blocks", "draft_steps", "draft_ahead", "target_speedup"}
ELSEWHERE |= {"draft_keep", "target_keep"}


def combinations() -> list[dict[str, str]]:
    names = ("drafter", "rule", "length")
    chains = product(CHAINS, ["token"], LENGTHS)
    trees = product(GROWN, ["recursive", "lantern"], LENGTHS[:3])
    made = [dict(zip(names, parts, strict=True)) for parts in (*chains, *trees)]
    made += [{"method": "sjd", "rule": rule} for rule in RULES]
    made += [{"method": name} for name in ("mulo-sd", "spatial-sd", "zipar", "plain")]
    return [*made, {"method": "upsample-only"}, {"method": "mulo-sd", "rule": "token"}]


def test_every_combination_reads_what_its_parts_are_made_of():
    seen = 0
    for parts in combinations():
        try:
            config = SpecConfig(**parts).serving("image")
        except InputError:
            continue
        knobs = {*OTHER} - {"target_quality"}
        found = read_by(of_ids, config, knobs)
        assert found == {*knobs_of(config, "image")} - ELSEWHERE, parts
        seen += 1
    assert seen > 40


def test_every_knob_is_a_setting_and_has_a_part():
    assert {*KNOBS} | {*PARTS, "stride"} == {field.name for field in fields(SpecConfig)}
    assert {*KNOBS} == {*OTHER} | ELSEWHERE


@pytest.mark.parametrize("method", [n for n, m in METHODS.items() if "continuous" in m.serves])
def test_continuous_methods_read_what_their_parts_are_made_of(method):
    config = SpecConfig(method).serving("continuous")
    found = read_by(of_steps, config, {*OTHER})
    assert found == {*knobs_of(config, "continuous")}


@pytest.mark.parametrize("method", ["sdvg", "sdvg-adaptive", "random-routing"])
def test_video_methods_read_what_their_rule_is_made_of(method):
    config = SpecConfig(method).serving("video")
    found = read_by(of_blocks, config, {*OTHER} - {"num_draft_tokens"})
    assert found == {*knobs_of(config, "video")} - ELSEWHERE - {"num_draft_tokens"}


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        (
            dict(method="scd", lantern_delta=0.9),
            "a setting of 'lantern', and method 'scd' does not",
        ),
        (dict(method="scd", lantern_delta=0.9), r"\(settings that it reads: jacobi_init, window\)"),
        (dict(method="scd", num_draft_tokens=4), "num_draft_tokens is a setting of 'model' or"),
        (dict(method="plain", window=3), r"does not read it; .*\(settings that it reads: none\)"),
        (dict(method="plain", rule="cool", cool_nu=0.3), "cool_nu is a setting of 'cool', and"),
        (dict(method="draft", max_draft_tokens=3), "max_draft_tokens is a setting of 'goodput' or"),
        (dict(method="draft", target_keep=0.3), "target_keep is a setting of 'target_compressor'"),
        (dict(method="scd", windw=3), "unknown setting 'windw'; did you mean 'window'"),
        (dict(method="scdd"), "unknown method 'scdd'; did you mean 'scd'"),
        (dict(method=None), "unknown method None"),
        (dict(method="scd", rule=3), "unknown rule 3"),
        (dict(method="scd", window="3"), "window must be an integer from 1 to 256, not '3'"),
        (dict(method="scd", window=True), "window must be an integer from 1 to 256, not True"),
        (dict(method="cool-sd", cool_nu="x"), "cool_nu must be from 0 to 100, not 'x'"),
        (dict(method="cool-sd", cool_nu=None), "cool_nu must be from 0 to 100, not None"),
        (dict(method="tree", tree_widths=3), "tree_widths must be a tuple, not 3"),
    ],
    ids=str,
)
def test_what_nothing_reads_and_slips(knobs, said):
    with pytest.raises(InputError, match=said) as error:
        SpecConfig(**knobs)
    assert "\n" not in str(error.value)


def test_a_knob_may_be_one_of_one_modality_alone():
    config = SpecConfig("eagle", num_draft_tokens=3)  # of text: pictures have a tree
    assert config.serving("vlm").num_draft_tokens == 3
    with pytest.raises(InputError, match="num_draft_tokens is a setting of"):
        config.serving("image")
    assert SpecConfig("drafter-only", draft_steps=2).serving("video").draft_steps == 2
    with pytest.raises(InputError, match="draft_steps is a setting of"):
        SpecConfig("drafter-only", draft_steps=2).serving("image")


@pytest.mark.parametrize("name", list(METHODS))
def test_configurations_are_copied_stored_and_completed(name):
    config = SpecConfig(name)
    for same in (pickle.loads(pickle.dumps(config)), copy(config), replace(config)):
        assert same == config
    for modality in METHODS[name].serves:
        whole = config.serving(modality)
        assert whole.serving(modality) == replace(whole) == pickle.loads(pickle.dumps(whole))


def test_a_name_is_a_configuration():
    assert config_of("scd") == SpecConfig("scd")
    assert config_of("gsd[window=32,group_size=3]") == SpecConfig("gsd", window=32, group_size=3)
    assert config_of(SpecConfig("sjd")) == SpecConfig("sjd")
    for wrong, said in (
        ("scdd", "did you mean 'scd'"),
        ("scd[windw=3]", "did you mean 'window'"),
        ("scd[lantern_delta=0.1]", "settings that it reads: jacobi_init, window"),  # its default
        (3, "a method's name such as 'scd' or .*, not 3"),
        ({"method": "scd"}, "is a SpecConfig, or a method's name"),
    ):
        with pytest.raises(InputError, match=said):
            config_of(wrong)


@pytest.mark.parametrize("suite", sorted(path.stem for path in SUITES.glob("*.yaml")))
def test_every_suite_sets_what_is_read(suite):
    load_suite(suite)
