"""Which methods a folder can run is read off its index, whatever stands in it."""

from __future__ import annotations

import json

import pytest
from wans import tiny_pipeline

from mmspec import SpecConfig, VideoPipeline
from mmspec.errors import InputError
from mmspec.pipelines.model_folders import components_in, locate, runnable_in
from mmspec.rewards.router import RouterReward


@pytest.fixture(scope="module")
def undrafted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undrafted")
    tiny_pipeline(drafter=False).save_pretrained(folder)
    return folder


def test_without_a_drafter_plain_is_left(undrafted):
    assert {"transformer", "vae"} <= components_in(undrafted, "video")
    assert not {"drafter", "router"} & components_in(undrafted, "video")
    assert runnable_in(undrafted, "video") == ["plain", "x-cache", "random-reuse"]


@pytest.mark.parametrize("entry", [[], None, {}, "drafter", [None, None]])
def test_an_entry_that_names_no_class_is_no_component(undrafted, tmp_path, entry):
    index = json.loads((undrafted / "model_index.json").read_text())
    (tmp_path / "model_index.json").write_text(json.dumps({**index, "drafter": entry}))
    assert "drafter" not in components_in(tmp_path, "video")
    named = {**index, "drafter": ["mmspec.models.wan.transformer", "WanTransformer"]}
    (tmp_path / "model_index.json").write_text(json.dumps(named))
    unasked = ["plain", "x-cache", "drafter-only", "random-routing", "random-reuse"]
    unasked += ["oracle-routing"]
    assert runnable_in(tmp_path, "video") == unasked


def test_the_router_is_asked_for_by_what_reads_its_rewards(tmp_path):
    names = ["plain", "sdvg", "sdvg-adaptive", "arbitrage", "x-cache"]
    names += ["drafter-only", "random-routing", "random-reuse", "oracle-routing"]
    tiny_pipeline().save_pretrained(tmp_path)
    assert runnable_in(tmp_path, "video") == names
    needs = {name: SpecConfig(name).resolve("video").needs for name in names}
    assert [name for name in names if "router" in needs[name]] == ["sdvg", "sdvg-adaptive"]
    assert needs["sdvg"] == ("drafter", "router")
    assert needs["arbitrage"] == ("drafter", "advantage_router")
    assert needs["oracle-routing"] == ("drafter",)
    assert SpecConfig("sdvg", reward="clip_score").resolve("video").needs == ("drafter",)
    pipe = tiny_pipeline()
    bare = VideoPipeline(**{**pipe.components, "router": None})
    with pytest.raises(InputError, match="has no router: train one, or name a reward"):
        bare.check_speculation(SpecConfig("sdvg"))
    bare.reward = RouterReward(pipe.router, pipe.tokenizer)  # of the user's
    bare.check_speculation(SpecConfig("sdvg"))


@pytest.mark.parametrize("name", ["smollm2", "embedded-vlm", "embedded-tuned"])
def test_a_folder_is_no_name(tmp_path, monkeypatch, name):
    """However it is written; found once, it is found again."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    for asked in (f"./{name}", f"{name}/", tmp_path / name):
        found = locate(locate(asked, ""), "")
        assert found.resolve() == tmp_path / name


def test_a_name_that_no_model_has(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no model embedded-tuned ships with this version"):
        locate("embedded-tuned", "")
