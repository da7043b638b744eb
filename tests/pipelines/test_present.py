"""Which methods a folder can run is read off its index, whatever stands in it."""

from __future__ import annotations

import json

import pytest
from wans import tiny_pipeline

from mmspec.pipelines.present import components_in, runnable_in


@pytest.fixture(scope="module")
def undrafted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undrafted")
    tiny_pipeline(drafter=False).save_pretrained(folder)
    return folder


def test_without_a_drafter_plain_is_left(undrafted):
    assert {"transformer", "vae"} <= components_in(undrafted, "video")
    assert not {"drafter", "router"} & components_in(undrafted, "video")
    assert runnable_in(undrafted, "video") == ["plain"]


@pytest.mark.parametrize("entry", [[], None, {}, "drafter", [None, None]])
def test_an_entry_that_names_no_class_is_no_component(undrafted, tmp_path, entry):
    index = json.loads((undrafted / "model_index.json").read_text())
    (tmp_path / "model_index.json").write_text(json.dumps({**index, "drafter": entry}))
    assert "drafter" not in components_in(tmp_path, "video")
    named = {**index, "drafter": ["mmspec.models.wan", "WanTransformer"]}
    (tmp_path / "model_index.json").write_text(json.dumps(named))
    assert "random-routing" in runnable_in(tmp_path, "video")
