"""Methods with settings, and sweeps: what text becomes what configuration, and in what order."""

from __future__ import annotations

from typing import Any

import pytest

from mmspec.errors import InputError
from mmspec.eval.sweeps import parse_methods, place, role, split_methods
from mmspec.methods import Preset, SpecConfig, parse_method, presets
from mmspec.methods.parts.blocks import ROUTER_TAU


@pytest.fixture
def knobs(monkeypatch):
    """Two methods with other knobs: a fraction that is faster the smaller, and whole numbers."""
    sure: Any = dict(length="confidence", knob="confidence", sweep=(0.9, 0.4, 0.05))
    counted: Any = dict(knob="num_draft_tokens", sweep=(1.0, 2, 4, 8))
    for name, more in (("sure", sure), ("counted", counted)):
        monkeypatch.setitem(presets(), name, Preset(name, "model", "token", "s", **more))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("plain,sjd", ("plain", "sjd")),
        (" plain , sjd ,", ("plain", "sjd")),
        ("a[x=1,y=2],b", ("a[x=1,y=2]", "b")),
        ("b,a[x=1,y=2]", ("b", "a[x=1,y=2]")),
        ("a[x=1],a[x=2],c", ("a[x=1]", "a[x=2]", "c")),
        ("a[x=1,b", ("a[x=1,b",)),  # the fault is for the parser to name
        ("", ()),
        (" , ", ()),
    ],
)
def test_commas_inside_brackets_do_not_split(text, names):
    assert split_methods(text) == names


@pytest.mark.parametrize(
    ("text", "name", "settings"),
    [
        ("sjd", "sjd", {}),
        ("sjd[window=8]", "sjd[window=8]", {"window": 8}),
        (
            "sjd[ window = 8 , rule=block ]",
            "sjd[window=8,rule=block]",
            {"window": 8, "rule": "block"},
        ),
        ("cool-sd[cool_nu=0.10]", "cool-sd[cool_nu=0.10]", {"cool_nu": 0.1}),
        ("cool-sd[cool_nu=1]", "cool-sd[cool_nu=1]", {"cool_nu": 1.0}),
        ("early-exit[exit_layer=2]", "early-exit[exit_layer=2]", {"exit_layer": 2}),
        ("early-exit[exit_layer=none]", "early-exit[exit_layer=none]", {"exit_layer": None}),
        ("draft[length=none]", "draft[length=none]", {"length": None}),
        ("tree[tree_widths=3]", "tree[tree_widths=3]", {"tree_widths": (3,)}),
        (
            "tree[tree_widths=3,2,1,siblings=top]",
            "tree[tree_widths=3,2,1,siblings=top]",
            {"tree_widths": (3, 2, 1), "siblings": "top"},
        ),
        (
            "merged[merge=lookup, tree,tree_nodes=20]",
            "merged[merge=lookup,tree,tree_nodes=20]",
            {"merge": ("lookup", "tree"), "tree_nodes": 20},
        ),
    ],
)
def test_settings_have_their_field_s_type(text, name, settings):
    found, config = parse_method(text)
    assert found == name
    assert config == SpecConfig(method=name.split("[")[0], **settings)
    for field, value in settings.items():
        read = config.options[field] if field in config.options else getattr(config, field)
        assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sdj", "did you mean 'sjd'"),
        ("sdj[window=3]", "did you mean 'sjd'"),
        ("", "unknown method ''"),
        ("sjd[windw=3]", "unknown setting of sjd 'windw'; did you mean 'window'"),
        ("sjd[method=scd]", "unknown setting of sjd 'method'"),
        ("sjd[window=x]", "sjd[window=x]: window must be an integer, not 'x'"),
        ("sjd[window=4.5]", "window must be an integer, not '4.5'"),
        ("sjd[window=]", "window must be an integer, not ''"),
        ("sjd[window=4,8]", "window must be an integer, not '4,8'"),
        ("sjd[window=none]", "window must be an integer, not 'none'"),
        ("sjd[window=0]", "sjd[window=0]: window must be an integer from 1 to 256, not 0"),
        ("draft[confidence=nan]", "confidence must be a number, not 'nan'"),
        ("early-exit[exit_layer=x]", "exit_layer must be an integer, or none, not 'x'"),
        ("tree[tree_widths=3,x]", "an integer, or several with commas between, not '3,x'"),
        ("sjd[rule=blok]", "did you mean 'block'"),
        ("sjd[rule=]", "unknown rule ''"),
        ("scd[rule=block]", "scd[rule=block]: rule 'block' lets later tokens"),
        ("sjd[4]", "a setting is NAME=VALUE, not '4'"),
        ("sjd[]", "a setting is NAME=VALUE, not ''"),
        ("sjd[window=3,window=4]", "sets window twice"),
        (
            "scd[lantern_delta=0.1]",
            "lantern_delta is a setting of 'lantern', and",
        ),
        ("draft[window=16]", "(settings that it reads: memory_budget, num_draft_tokens)"),
        ("sjd[window=3", "'sjd[window=3' is no method: write NAME"),
        ("sjd window=3]", "is no method: write NAME"),
        ("sjd[window=3]x", "is no method: write NAME"),
        ("sjd[window=3][rule=block]", "is no method: write NAME"),
    ],
)
def test_bad_input_is_one_line(text, said):
    with pytest.raises(InputError) as error:
        parse_method(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_plain_comes_first_and_names_count_once():
    assert list(parse_methods(("sjd", "plain", "sjd", ""))) == ["plain", "sjd"]
    with pytest.raises(InputError, match="empty"):
        parse_methods(("",))
    with pytest.raises(InputError, match="did you mean 'draft'"):
        parse_methods(("plain", "drafts"))


def test_plain_with_settings_is_no_baseline():
    configs = parse_methods(("plain[drafter=lookup]", "drafter-only"))
    roles = {name: role(name, config) for name, config in configs.items()}
    assert roles == {"plain": "baseline", "plain[drafter=lookup]": "method"} | {
        "drafter-only": "sceptic"
    }


def test_a_family_differs_in_its_knob_alone():
    def family(text):
        return place(parse_method(text)[1])

    assert family("sjd") == ("sjd", "window", 16)
    assert family("sjd[window=4]") == ("sjd", "window", 4)
    assert family("sjd[rule=block]") == ("sjd[rule=block]", "window", 16)
    assert family("sjd[rule=block,window=4]") == family("sjd[window=4,rule=block]")
    assert family("tree[tree_widths=3,2]") == ("tree[tree_widths=3,2]", None, None)
    assert family("scd") != family("sjd")
    # the rule whose knob it was has gone
    assert family("spatial-sd[rule=token]") == ("spatial-sd[rule=token]", None, None)


def test_a_family_s_name_reads_as_the_family():
    for text in ("tree[tree_widths=3,2,siblings=top]", "merged[merge=lookup,tree]", "draft"):
        config = parse_method(text)[1]
        assert parse_method(place(config).family)[1] == config


def test_a_sweep_adds_every_value_and_none_twice():
    configs = parse_methods(("plain", "sjd"), ("sjd",))
    assert list(configs) == [
        *("plain", "sjd[window=4]", "sjd[window=8]", "sjd", "sjd[window=32]")
    ]  # window 16 is sjd's own
    assert [place(config).value for config in configs.values()][1:] == [4, 8, 16, 32]
    alone = parse_methods(("plain",), ("scd", "scd"))
    assert list(alone) == ["plain", *(f"scd[window={w}]" for w in (4, 8, 16, 32))]
    with_rule = parse_methods(("plain",), ("sjd[rule=block]",))
    assert {config.rule for name, config in with_rule.items() if name != "plain"} == {"block"}
    assert [place(c).family for c in with_rule.values()][1:] == ["sjd[rule=block]"] * 4


def test_all_sweeps_what_has_a_knob():
    configs = parse_methods(("draft", "sjd[window=5]", "scd[jacobi_init=above]"), ("all",))
    assert list(configs) == [
        *("plain", "draft"),
        *(f"sjd[window={w}]" for w in (4, 5, 8, 16, 32)),
        *(f"scd[jacobi_init=above,window={w}]" for w in (4, 8)),
        "scd[jacobi_init=above]",
        "scd[jacobi_init=above,window=32]",
    ]


def test_what_a_method_does_anyway_is_not_measured_twice():
    configs = parse_methods(("mulo-sd",), ("mulo-sd",))
    assert [place(config).value for config in configs.values()][1:] == [0.7, 0.5, 0.3, 0.1]
    assert list(configs)[-1] == "mulo-sd"


def test_thresholds_of_the_router_are_swept_for_it_alone():
    own = "sdvg[reward=clip_score]"
    swept = parse_methods((own, "sdvg[frame_rule=mean]"), ("all",))
    assert [name for name in swept if "clip_score" in name] == [own]
    thresholds = {place(config).value for name, config in swept.items() if "mean" in name}
    assert thresholds == {*presets()["sdvg"].sweep, ROUTER_TAU}


def test_rows_go_from_safe_to_fast_whichever_way_the_knob_turns(knobs):
    swept = parse_methods(("counted[num_draft_tokens=3]", "plain"), ("sure", "counted"))
    values = [place(config).value for config in swept.values()]
    assert values == [None, 1, 2, 3, 4, 8, 0.9, 0.4, 0.05]
    names = [f"sure[confidence={text}]" for text in ("0.9", "0.4", "0.05")]
    assert list(swept)[-3:] == names
    counted = (swept[f"counted[num_draft_tokens={n}]"] for n in (1, 2, 3))
    assert {type(config.options["num_draft_tokens"]) for config in counted} == {int}


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        ("draft", "draft has no knob to sweep; these have: "),
        ("spatial-sd[rule=token]", "spatial-sd[rule=token] has no knob to sweep"),
        ("sjd[window=4]", "a sweep sets window itself; leave it out"),
        ("sdj", "did you mean 'sjd'"),
        ("sdvg[reward=clip_score]", "a sweep has thresholds of reward 'router' alone"),
        ("oracle-routing[reward=clip_score]", "thresholds of reward 'shapes_clip_score' alone"),
    ],
)
def test_what_can_not_be_swept(sweep, said):
    with pytest.raises(InputError) as error:
        parse_methods(("plain",), (sweep,))
    assert said in str(error.value)


def test_every_knob_is_a_setting_and_its_sweep_runs():
    """Values are those of the field, differ, and go one way."""
    for name, method in presets().items():
        if method.knob is None:
            assert not method.sweep
            continue
        configs = parse_methods(("plain",), (name,))
        values = [place(config).value for config in configs.values()][1:]
        assert values == list(method.sweep)
        assert values in (sorted(set(values)), sorted(set(values), reverse=True))
