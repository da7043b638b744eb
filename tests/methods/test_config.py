"""Which knobs a configuration reads, against the parts that are made of it; what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from copy import copy
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmspec import SpecConfig
from mmspec.draft.null import NullDrafter
from mmspec.engine.length.goodput import Experience
from mmspec.errors import InputError
from mmspec.eval.suite import SUITES, load_suite
from mmspec.methods import ResolvedConfig, config_of, parts, presets, serving
from mmspec.methods.chosen import readers
from mmspec.methods.config import all_options
from mmspec.methods.options import options_of
from mmspec.methods.resolved import resolve
from mmspec.models.token_grid import TokenGrid
from mmspec.pipelines.parts import nearest_codes, token_offers

OTHER: dict[str, Any] = {  # than the default
    "num_draft_tokens": 3,
    "max_draft_tokens": 19,
    "max_ngram": 2,
    "window": 5,
    "draft_rows": 2,
    "jacobi_init": "uniform",
    "refinements": 3,
    "trust": 2.0,
    "exit_layer": 2,
    "fuzzy_layers": 2,
    "exits": (1, 2),
    "exit_confidence": (0.3,),
    "block_length": 3,
    "inner": "recycling",
    "inner_draft_tokens": 2,
    "confidence": 0.3,
    "least_share": 0.3,
    "growth_share": 0.5,
    "recency": 0.3,
    "cache_window": 9,
    "cache_kernel": 3,
    "sink_tokens": 2,
    "draft_cache_keep": 0.3,
    "target_cache_keep": 0.3,
    "draft_cache_size": 9,
    "target_cache_size": 9,
    "rejection": 0.3,
    "tree_widths": (2, 2),
    "static_tree": "recycling-80",
    "static_nodes": 9,
    "table_lives": True,
    "run_cache": 9,
    "tree_depth": 3,
    "tree_width": 2,
    "tree_beam": 2,
    "tree_nodes": 9,
    "tree_search": "monte-carlo",
    "path_beam": 2,
    "path_weight": 0.3,
    "path_mass": 0.3,
    "siblings": "top",
    "merge": ("lookup", "tree"),
    "head_places": 3,
    "zipar_window": 3,
    "parallel_rows": 2,
    "parallel_window": 2,
    "parallel_lag": 2,
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
    "judge_threshold": 0.3,
    "judge_floor": 0.3,
    "prune_layers": 3,
    "prune_probability": 0.3,
    "local_threshold": 0.3,
    "local_radius": 2,
    "local_criterion": "ratio",
    "local_advance": 3,
    "local_slips": 3,
    "frame_rule": "mean",
    "tau": 3.0,
    "advantage_tau": 0.3,
    "gain_tau": 0.3,
    "draft_share": 0.3,
    "reward_tau": 0.3,
    "step_tokens": 3,
    "verify_policy": "ucb",
    "verify_score": "dynamic",
    "verify_estimate": "margin",
    "verify_cost": 2.0,
    "verify_entropy": 2.0,
    "verify_threshold": 0.3,
    "verify_on": 2.0,
    "verify_off": -3.0,
    "verify_span": 3,
    "verify_explores": 2.0,
    "fill_confidence": 0.3,
    "target_quality": 3.0,
}
CODES = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))


TARGET: Any = SimpleNamespace(layers=4, embeddings=CODES, watch=lambda **states: None)
ELSE = {
    "length": "constant",
    "more": None,
    "prompt": None,
    "table": "kept",
    "trigrams": "kept",
    "runs": "kept",
    "eos": (),
    "relaxed": None,
    "spatial": TARGET,
    "rounded": TARGET,
    "judge": SimpleNamespace(threshold=0.5),
    "fuzzy": nullcontext,
    "ends": None,
}


def built(config: ResolvedConfig) -> list[Any]:
    """All parts, of what a pipeline of ids offers."""
    size = config.draft_size(4)
    offers = token_offers(
        TARGET,
        TARGET,
        12,
        TokenGrid(4, 4),
        codebook=lambda: CODES,
        nearest=lambda: nearest_codes(lambda: CODES),
        experience=lambda: Experience([1.0] * (size.deepest + 1)),
        scaled_up=lambda: list,
        **{name: lambda value=value: value for name, value in ELSE.items()},
    )
    rule, length = config.build_rule(offers), config.build_length(offers, 4)
    caches = [tuple(config.build_cache(slot) or ()) for slot in ("draft", "target")]
    return [rule, None if config.unverified else length, config.build_drafter(offers), caches]


def of_steps(config: ResolvedConfig) -> list[Any]:
    return [config.build_rule({}), config.build_length({})]


def of_blocks(config: ResolvedConfig) -> list[Any]:
    return [config.build_rule({})]


def told(part: Any) -> Any:
    """What a part holds, all the way down."""
    if isinstance(part, torch.Tensor):
        return part.tolist()
    if isinstance(part, list | tuple):
        return [told(each) for each in part]
    if type(part).__module__.startswith("mmspec"):
        return [type(part).__name__, {name: told(value) for name, value in vars(part).items()}]
    return part if isinstance(part, str | int | float | None) else type(part).__name__


def idle(make: Callable[[ResolvedConfig], list[Any]], config: ResolvedConfig) -> set[str]:
    """The options that a configuration reads, and whose other values change no part."""
    found = set()
    for name in {*config.options} - ELSEWHERE:
        other = OTHER[name]
        if other == config.options[name]:
            other = {"ratio": "threshold"}[other]
        try:
            changed = config.config.replace(**{name: other}).resolve(config.modality)
        except InputError:  # read, and found wanting
            continue
        if told(make(changed)) == told(make(config)):
            found.add(name)
    return found


CHAINS = ("model", "joined", "fuzzy", "early-exit", "rounded", "nested", "lookup")
CHAINS += ("jacobi", "coupled-jacobi", "gumbel-jacobi")
GROWN = ("tree", "dynamic-tree", "merged", "recycling", "trigram")
RULES = ("token", "block", "lantern", "lantern++", "grouped", "cool", "judge")
LENGTHS = ("constant", "heuristic", "goodput", "confidence", "specdec++", "speckv", "faser", "auto")
LENGTHS += ("eos-ema",)
# read by the pipeline itself: see where `Drawing`, `TokenTarget` and `VideoRun` are made
ELSEWHERE = {"upsampler", "draft_guidance", "draft_temperature", "local_turns", "local_window"}
ELSEWHERE |= {"branch", "reward", "forced_blocks", "draft_steps", "draft_ahead", "draft_beside"}
ELSEWHERE |= {"target_speedup", "step"}
ELSEWHERE |= {"reuse_threshold", "reuse_share", "reuse_blocks", "reuse_layers"}
ELSEWHERE |= {"draft_keep", "target_keep", "memory_budget", "hot_experts"}
ELSEWHERE |= {"evicts", "lookahead_tokens"}


def combinations() -> list[dict[str, str]]:
    names = ("drafter", "rule", "length")
    chains = product(CHAINS, ["token"], LENGTHS)
    trees = product(GROWN, ["recursive", "lantern"], LENGTHS[:3])
    made = [dict(zip(names, parts, strict=True)) for parts in (*chains, *trees)]
    made += [{"method": "sjd", "rule": rule} for rule in RULES] + [{"rule": "restricted"}]
    made += [{"method": name} for name in ("mulo-sd", "spatial-sd", "zipar", "plain")]
    made += [{"method": name} for name in ("spatial-exact", "dflash", "scd-dflash")]
    made += [{"method": "dflash", "drafter": "dflash-tree", "rule": "recursive"}]
    return [*made, {"method": "upsample-only"}, {"method": "mulo-sd", "rule": "token"}]


def test_every_option_that_a_combination_reads_changes_a_part():
    seen = 0
    for names in combinations():
        try:
            config = SpecConfig(**names).resolve("image")
        except InputError:
            continue
        assert not idle(built, config), names
        seen += 1
    assert seen > 40


def test_every_option_has_a_part_and_every_part_its_own():
    assert {*all_options()} == {*OTHER} | ELSEWHERE
    for kind in ("drafter", "rule", "length", "head", "cache"):
        for part in parts(kind).values():
            read = {name for name in options_of(part.options) if part.name in readers(name)}
            assert read == {*options_of(part.options)}


def test_options_of_one_name_are_one_option():
    """Whichever part declares them: of one type and range, so that a setting has one meaning."""
    seen = {}
    for kind in ("drafter", "rule", "length", "head", "cache"):
        for part in parts(kind).values():
            for name, option in options_of(part.options).items():
                assert seen.setdefault(name, option) == option


@pytest.mark.parametrize("method", serving("continuous"))
def test_continuous_methods_read_what_their_parts_are_made_of(method):
    config = SpecConfig(method).resolve("continuous")
    if config.drafts and not config.drafter.whole:  # whole tokens are the pipeline's to count
        assert not idle(of_steps, config)


@pytest.mark.parametrize("name", parts("cache"))
def test_caches_read_what_their_choosers_are_made_of(name):
    config = SpecConfig("draft", draft_cache=name, target_cache=name).resolve("vlm")
    assert {f"{slot}_cache_{amount}" for slot in ("draft", "target") for amount in (
        "keep", "size")} < {*config.options}  # fmt: skip
    assert not idle(built, config)
    assert config.contract == "lossy"
    assert SpecConfig("draft", draft_cache=name).resolve("vlm").contract == "exact"


@pytest.mark.parametrize(
    "method", ["sdvg", "sdvg-adaptive", "arbitrage", "oracle-routing", "random-routing"]
)
def test_video_methods_read_what_their_rule_is_made_of(method):
    config = SpecConfig(method).resolve("video")
    for name in {*config.options} - ELSEWHERE - {"target_quality"}:
        changed = config.config.replace(**{name: OTHER[name]}).resolve("video")
        assert told(of_blocks(changed)) != told(of_blocks(config)), name


@pytest.mark.parametrize(
    "method", ["arbitrage", "reward-guided", "oracle-routing", "random-routing"]
)
def test_methods_of_steps_read_what_their_parts_are_made_of(method):
    config = SpecConfig(method).resolve("vlm")
    assert {"step", "step_tokens"} < {*config.options}
    assert not idle(built, config)


def test_the_declared_contract_is_that_of_the_class():
    codes = {"nearest": lambda: nearest_codes(lambda: CODES), "codebook": lambda: CODES}
    offers = {**codes, "stride": lambda: 4}
    for name in (*presets(), "draft[rule=block]", "tree[rule=k-seq,siblings=independent]"):
        config = config_of(name)
        for modality in presets()[config.method].serves:
            found = config.resolve(modality)
            if found.other_law or not found.drafts:
                assert found.contract == ("lossy" if found.other_law else "exact")
            else:
                assert found.contract == found.build_rule(offers).contract


def test_a_drafter_without_arguments_is_made():
    assert type(SpecConfig("plain").resolve("image").build_drafter({})) is NullDrafter


def test_a_configuration_is_resolved_once(monkeypatch):
    """However often it is used, and by whichever pipeline."""
    resolve.cache_clear()
    config = SpecConfig("gsd", window=7, group_size=5)
    made = resolve.cache_info().misses
    for _ in range(20):
        config.resolve("image").draft_size(4)
        SpecConfig("gsd", group_size=5, window=7).resolve("image")
    assert (made, resolve.cache_info().misses) == (1, 1)


def test_version_0_1_saved_every_option():
    """Those that its method does not read were at their defaults or None."""
    saved = {
        "method": "gsd",
        **dict.fromkeys(("drafter", "rule", "length", "head", "num_draft_tokens", "tau"), None),
        "window": 32,
        "group_size": 5,
        "tree_widths": [3, 2, 1, 1],
        "stride": 1,
        "wished_speedup": None,
        "merge": ["coupled-jacobi", "tree"],
        "reward": "router",
    }
    assert SpecConfig.from_dict(saved) == SpecConfig("gsd", window=32, group_size=5)
    renamed = {"method": "sdvg-adaptive", "wished_speedup": 1.5, "stride": 1}
    assert SpecConfig.from_dict(renamed) == SpecConfig("sdvg-adaptive", target_speedup=1.5)
    with pytest.raises(InputError, match="unknown setting 'gropu_size'; did you mean 'group_size'"):
        SpecConfig.from_dict({"method": "gsd", "gropu_size": 3, "stride": 1})
    with pytest.raises(InputError, match="wished_speedup is called target_speedup since"):
        SpecConfig("sdvg-adaptive", wished_speedup=1.5)
    for wrong in ({}, {"window": 3}, [], "gsd"):
        with pytest.raises(InputError, match="it names no method"):
            SpecConfig.from_dict(wrong)


def test_its_schema_takes_what_it_saves():
    schema = SpecConfig.schema()
    for text in ("gsd[group_size=3]", "tree[tree_widths=3,2]", "early-exit[exit_layer=none]"):
        saved = json.loads(json.dumps(config_of(text).to_dict()))
        assert {*saved} <= {*schema["properties"]}
        assert SpecConfig.from_dict(saved) == config_of(text)
    group = schema["properties"]["group_size"]
    assert (group["type"], group["minimum"], group["maximum"]) == ("integer", 1, 65536)
    assert not schema["additionalProperties"]


def test_nobody_changes_it():
    with pytest.raises(AttributeError, match=r"replace\(method=…\)"):
        SpecConfig("gsd").method = "sjd"
    with pytest.raises(TypeError):
        SpecConfig("gsd", window=3).options["window"] = 4
    assert SpecConfig("gsd", window=3).replace(window=4) == SpecConfig("gsd", window=4)
    assert repr(SpecConfig("gsd", window=3)) == "SpecConfig('gsd', window=3)"


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        (
            dict(method="scd", lantern_delta=0.9),
            "a setting of 'lantern', and method 'scd' does not",
        ),
        (
            dict(method="scd", lantern_delta=0.9),
            r"\(settings that it reads: jacobi_init, memory_budget, window\)",
        ),
        (dict(method="scd", num_draft_tokens=4), "num_draft_tokens is a setting of 'model' or"),
        (dict(method="plain", window=3), r"does not read it; .*\(settings that it reads: none\)"),
        (dict(method="plain", rule="cool", cool_nu=0.3), "cool_nu is a setting of 'cool', and"),
        (
            dict(method="draft", max_draft_tokens=3),
            "max_draft_tokens is a setting of 'heuristic' or",
        ),
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
        (dict(method="cool-sd", cool_delta=float("nan")), "cool_delta must be from 0 to 1e\\+06"),
        (dict(method="cool-sd", cool_length=0), "cool_length must be an integer from 1 to 256"),
        (dict(method="gsd", group_size=0), "group_size must be an integer from 1 to 65536"),
        (dict(method="gsd", group_probability=0), "group_probability must be above 0 and at most"),
        (dict(method="gsd", group_distance=float("nan")), "group_distance must be above 0"),
        (dict(method="lantern", lantern_delta=1.1), "lantern_delta must be from 0 to 1, not 1.1"),
        (dict(method="lantern++", lantern_lambda=0.9), "lantern_lambda must be from 1 to 1e\\+06"),
        (dict(method="cspd-independent", softening=0.5), "softening must be from 1 to 1e\\+06"),
        (dict(method="random-routing", draft_share=2), "draft_share must be from 0 to 1, not 2"),
        (dict(method="sdvg", frame_rule="best"), "unknown frame_rule 'best'"),
    ],
    ids=str,
)
def test_what_nothing_reads_and_slips(knobs, said):
    with pytest.raises(InputError, match=said) as error:
        SpecConfig(**knobs)
    assert "\n" not in str(error.value)


def test_a_knob_may_be_one_of_one_modality_alone():
    config = SpecConfig("eagle", num_draft_tokens=3)  # of text: pictures have a tree
    assert config.resolve("vlm").options["num_draft_tokens"] == 3
    with pytest.raises(InputError, match="num_draft_tokens is a setting of"):
        config.resolve("image")
    alone = SpecConfig("drafter-only", draft_steps=2)
    assert alone.resolve("video").options["draft_steps"] == 2
    with pytest.raises(InputError, match="draft_steps is a setting of"):
        alone.resolve("image")


@pytest.mark.parametrize("name", presets())
def test_configurations_are_copied_and_stored(name):
    config = SpecConfig(name)
    for same in (pickle.loads(pickle.dumps(config)), copy(config), config.replace()):
        assert same == config
        assert hash(same) == hash(config)
    for modality in presets()[name].serves:
        whole = config.resolve(modality)
        assert whole == pickle.loads(pickle.dumps(whole))


def test_a_name_is_a_configuration():
    assert config_of("scd") == SpecConfig("scd")
    assert config_of("gsd[window=32,group_size=3]") == SpecConfig("gsd", window=32, group_size=3)
    assert config_of(SpecConfig("sjd")) == SpecConfig("sjd")
    for wrong, said in (
        ("scdd", "did you mean 'scd'"),
        ("scd[windw=3]", "did you mean 'window'"),
        (
            "scd[lantern_delta=0.1]",
            "settings that it reads: jacobi_init, memory_budget, window",
        ),  # its default
        (3, "a method's name such as 'scd' or .*, not 3"),
        ({"method": "scd"}, "is a SpecConfig, or a method's name"),
    ):
        with pytest.raises(InputError, match=said):
            config_of(wrong)


@pytest.mark.parametrize("suite", sorted(path.stem for path in SUITES.glob("*.yaml")))
def test_every_suite_sets_what_is_read(suite):
    load_suite(suite)
