"""`mmspec doctor`: a fault in a trained head is named, and a head without one is left alone."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import torch
from filelock import FileLock
from PIL import Image
from safetensors.torch import load_file, save_file
from trained_heads import (
    MASK,
    PAD,
    SIZES,
    WORDS,
    States,
    V,
    dflash,
    eagle1,
    eagle3,
    prompts,
    seeing,
    tokenizer,
    trained_target,
)
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.cli.main import main
from mmspec.models.heads.loading import load_head

ASKED = [word for text in prompts(20) for word in ("--prompt", text)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with targets and trained heads; of several processes, the first trains them."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    with FileLock(shared / "doctor.lock"):
        if not (shared / "doctor").exists():
            made = tmp_path_factory.mktemp("made")
            train(made)
            made.rename(shared / "doctor")
    return shared / "doctor"


def train(home):
    """Write the target, one that sees, another one, and heads as they are published."""
    model = trained_target()
    model.save_pretrained(home / "target")
    tokenizer().save_pretrained(home / "target")
    seeing(model, home / "seeing")
    states = States(model)
    eagle3(states).save_pretrained(home / "eagle3")
    dflash(states).save_pretrained(home / "dflash")
    load_head(home / "dflash").save_pretrained(home / "speculators", "speculators")
    eagle1(states, raw=True).save_pretrained(home / "raw")
    eagle1(states, lag=True).save_pretrained(home / "lag")
    eagle1(States(model, pictured=True), placeholder=True).save_pretrained(home / "placeholder")
    other = LlamaConfig(**{**SIZES, "hidden_size": 24, "head_dim": 6}, num_hidden_layers=4)
    LlamaForCausalLM(other).save_pretrained(home / "other")
    tokenizer().save_pretrained(home / "other")


@pytest.fixture
def doctor(home, capsys):
    """Runs the command with `--json`: exit code, findings, all that was printed."""

    def call(head, *more, target="target"):
        capsys.readouterr()
        command = ["doctor", "--target", str(home / target), "--head", str(head), *ASKED]
        code = main([*command, "--max-new-tokens", "24", "--json", *more])
        found = json.loads(capsys.readouterr().out)
        return code, [one for one in found["findings"] if one["state"] == "fault"], found

    return call


def config(**changes):
    """Plants a fault in `config.json`; what `dflash_config` holds goes there."""

    def plant(folder):
        path = folder / "config.json"
        told = json.loads(path.read_text())
        inner = told.get("dflash_config", {})
        for name, value in changes.items():
            (inner if name in inner else told)[name] = value
        path.write_text(json.dumps(told))

    return plant


def tensors(change):
    """Plants a fault in the tensors."""

    def plant(folder):
        path = folder / "model.safetensors"
        told = load_file(path)
        change(told)
        save_file(told, path)

    return plant


def unfilled(told):
    told["d2t"] = torch.zeros_like(told["d2t"])
    del told["t2d"]


def of_another_head(told):
    """The same tokens in another order, as another head's map has them."""
    ids = told["d2t"] + torch.arange(WORDS)
    order = torch.randperm(WORDS, generator=torch.Generator().manual_seed(5))
    told["d2t"] = ids[order] - torch.arange(WORDS)


def ids_for_offsets(told):
    told["d2t"] = told["d2t"] + torch.arange(WORDS)


def unset(told):
    told["fc.weight"][3] = torch.nan


def overflown(told):
    for name, value in told.items():
        if value.is_floating_point():
            told[name] = value.half()
    told["midlayer.mlp.up_proj.weight"][0] = 7e4  # infinity in float16


def half_a_file(folder):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def other_words(folder):
    tokenizer([*range(1, V), 0]).save_pretrained(folder)


NOTHING = tensors(lambda told: None)
LAYERS = "eagle_aux_hidden_state_layer_ids"
# by name: the head, the fault, the check that finds it, and what its line names
FAULTS = {
    "layers one up": ("eagle3", config(**{LAYERS: [2, 3, 4]}), "layers", "to [1, 2, 3]"),
    "layers one down": ("dflash", config(target_layer_ids=[0, 2]), "layers", "to [1, 3]"),
    "layers of another numbering": (
        "dflash",
        config(target_layer_ids=[2, 4]),
        "layers",
        "to [1, 3]",
    ),
    "norm_output of another writer": (
        "eagle3",
        config(architectures=["LlamaForCausalLM"], norm_output=True),
        "feedback",
        "remove norm_output",
    ),
    "residual": (
        "eagle3",
        config(norm_before_residual=True),
        "norms",
        "norm_before_residual to false",
    ),
    "features in front of the norm": ("raw", NOTHING, "norms", "in front of the final norm"),
    "shift": ("lag", NOTHING, "shift", "shift 0"),
    "shift of a block": (
        "speculators",
        config(sample_from_anchor=True),
        "shift",
        "sample_from_anchor to false",
    ),
    "rotary": ("eagle3", config(rope_theta=1e6), "rotary", "rope_theta"),
    "map unfilled": ("eagle3", tensors(unfilled), "vocabulary map", "unfilled"),
    "map of another head": ("eagle3", tensors(of_another_head), "vocabulary map", "another head"),
    "map of ids": ("eagle3", tensors(ids_for_offsets), "vocabulary map", "token ids"),
    "mask token": ("dflash", config(mask_token_id=PAD), "mask token", f"to {MASK}"),
    "tokenizer": ("eagle3", other_words, "tokenizer", "another tokenizer"),
    "NaN": ("eagle3", tensors(unset), "tensors", "fc.weight"),
    "float16": ("eagle3", tensors(overflown), "dtype", "float16"),
    "half a file": ("eagle3", half_a_file, "files", "model.safetensors"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(home, doctor, tmp_path, name):
    head, plant, check, said = FAULTS[name]
    folder = tmp_path / "head"
    shutil.copytree(home / head, folder)
    plant(folder)
    code, faults, found = doctor(folder)
    assert code == 1
    assert not found["healthy"]
    assert found["findings"][0] == faults[0]  # on top
    assert [one["check"] for one in faults] == [check]
    assert said in faults[0]["text"]


@pytest.mark.parametrize("head", ["eagle3", "dflash", "speculators"])
def test_a_head_without_a_fault_is_left_alone(home, doctor, head):
    code, faults, found = doctor(home / head)
    assert (code, faults) == (0, [])
    assert found["healthy"]
    states = {one["check"]: one["state"] for one in found["findings"]}
    assert states["greedy"] == states["acceptance"] == "fine"
    stated, *others = found["trials"]
    assert stated["tokens_per_call"] > 2.5
    assert len(others) > 4
    assert all(sum(one["accepted_at"]) <= sum(one["judged_at"]) for one in found["trials"])


def test_a_head_of_another_target(home, doctor):
    code, faults, _ = doctor(home / "eagle3", target="other")
    assert code == 1
    assert [one["check"] for one in faults] == ["sizes"]
    assert "hidden_size 48" in faults[0]["text"]


def test_a_head_that_was_shown_the_placeholder(home, doctor, tmp_path):
    """Without pictures it is accepted as it should be."""
    shown = []
    for seed in range(2):
        pixels = np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{seed}.png")
        shown += ["--image", str(tmp_path / f"{seed}.png")]
    code, faults, found = doctor(home / "placeholder", *shown, target="seeing")
    assert code == 1
    assert [one["check"] for one in faults] == ["images"]
    assert "the placeholder's embedding at pictures" in faults[0]["text"]
    text, pictures = found["trials"][:2]
    assert text["tokens_per_call"] > 2 * pictures["tokens_per_call"]


def test_a_line_a_check_faults_on_top(home, capsys, tmp_path):
    folder = tmp_path / "head"
    shutil.copytree(home / "eagle3", folder)
    other_words(folder)
    command = ["doctor", "--target", str(home / "target"), "--head", str(folder), *ASKED[:4]]
    capsys.readouterr()
    assert main([*command, "--max-new-tokens", "4"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FAULT  tokenizer ")
    checks = {line.split()[1] for line in lines}
    assert {"files", "format", "layers", "norms", "feedback", "rotary", "dtype", "greedy"} <= checks


def test_bad_input(home, capsys, tmp_path):
    capsys.readouterr()
    target, head = str(home / "target"), str(home / "eagle3")
    for command, said in (
        (["--target", target, "--head", str(tmp_path / "none")], "no folder"),
        (["--target", str(tmp_path / "none"), "--head", head], "no model folder"),
        (["--target", target, "--head", head, "--image", "x.png"], "sees no pictures"),
        (["--target", target, "--head", head, "--max-new-tokens", "0"], "--max-new-tokens"),
    ):
        assert main(["doctor", *command]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert said in err
