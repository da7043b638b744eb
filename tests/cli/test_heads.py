"""`mmspec heads`: what is shown of a head, and heads that are converted."""

from __future__ import annotations

import json

import folders
import pytest
import torch

from mmspec.errors import InputError
from mmspec.models.heads.loading import load_head


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_a_head_is_shown(run, tmp_path):
    folder, _, _ = folders.speculators_eagle3(tmp_path / "head")
    code, out, _ = run("heads", "show", folder, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["format"] == "speculators eagle3"
    assert found["hidden states that it reads"] == [1, 2, 3]
    assert (found["vocabulary"], found["tokens that it drafts"]) == (folders.V, folders.VD)
    assert found["can be written as"] == ["eagle3", "speculators"]
    code, out, _ = run("heads", "show", folder)
    assert code == 0
    assert len(out.splitlines()) == len(found)


def test_what_vllm_is_told(run, tmp_path, refused):
    folder, _, _ = folders.speculators_eagle3(tmp_path / "head")
    code, out, _ = run("heads", "show", folder, "--vllm")
    assert code == 0
    told = json.loads(out)
    assert len(out.splitlines()) == 1  # to be handed on in a shell
    assert told.pop("num_speculative_tokens") == load_head(folder).length
    assert told == {"model": str(folder), "method": "eagle3"}
    folder, _, _ = folders.medusa(tmp_path / "medusa")
    told = json.loads(run("heads", "show", folder, "--vllm")[1])
    assert (told["method"], told["num_speculative_tokens"]) == ("medusa", load_head(folder).length)
    folder, _, _ = folders.eagle1(tmp_path / "eagle")  # whose files say no length
    assert load_head(folder).length is None
    told = json.loads(run("heads", "show", folder, "--vllm")[1])
    assert told == {"model": str(folder), "method": "eagle", "num_speculative_tokens": 8}
    folder, _, _ = folders.peagle(tmp_path / "peagle")
    told = json.loads(run("heads", "show", folder, "--vllm")[1])
    assert (told["method"], told["parallel_drafting"]) == ("eagle3", True)
    folder, _, _ = folders.hydra(tmp_path / "hydra")
    refused(
        run("heads", "show", folder, "--vllm"), "vLLM has no method for hydra heads; it has for"
    )


def test_a_head_is_converted(run, tmp_path):
    folder, _, _ = folders.eagle3(tmp_path / "head", eagle_aux_hidden_state_layer_ids=[1, 2, 3])
    where = tmp_path / "made"
    command = ("heads", "convert", folder, where, "--format", "speculators")
    target = ("--target", "org/model", "--architecture", "LlamaForCausalLM")
    code, out, _ = run(*command, *target)
    assert code == 0
    assert "speculators eagle3" in out
    config = json.loads((where / "config.json").read_text())
    verifier = {"name_or_path": "org/model", "architectures": ["LlamaForCausalLM"]}
    assert config["speculators_config"]["verifier"] == verifier
    mine, theirs = load_head(folder), load_head(where)
    for name, value in mine.network.state_dict().items():
        assert torch.equal(theirs.network.state_dict()[name], value)


def test_a_disk_that_is_full_leaves_nothing_behind(run, tmp_path, refused, full_disk):
    folder, _, _ = folders.eagle3(tmp_path / "head", eagle_aux_hidden_state_layer_ids=[1, 2, 3])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with full_disk(200):
        refused(run("heads", "convert", folder, tmp_path / "made"), "can't write")
    assert not (tmp_path / "made").exists()
    head = load_head(folder)
    with full_disk(200), pytest.raises(InputError, match="can't write"):
        head.save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_what_can_not_be_converted(run, tmp_path, refused):
    folder, _, _ = folders.medusa(tmp_path / "head")
    where = tmp_path / "made"
    said = "can't be written as 'eagle3'"
    refused(run("heads", "convert", folder, where, "--format", "eagle3"), said)
    assert not where.exists()
    refused(run("heads", "convert", folder, folder), "is there already")
    inside = folder / "config.json" / "in"
    refused(run("heads", "convert", folder, inside), f"can't write to {inside}")
    refused(run("heads", "show", tmp_path / "nothing"), "config.json")
    refused(run("heads", "show", folder, "--kind", "msd"), "no head of MSD")
