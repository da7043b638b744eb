"""Weights at rest in eight bits: small, near what they were, and read by every loader."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.errors import InputError
from mmspec.models import embedded
from mmspec.models.eight_bit import BLOCK, is_packed, main, pack, pack_folder, unpack, unpack_folder
from mmspec.models.embedded import embedded_folder, readable
from mmspec.pipelines.model_folders import locate
from mmspec.train.recipes import train


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    """A trained model's folder, with a part of its own and what a training left."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 100, "num_hidden_layers": 1}
    config = LlamaConfig(vocab_size=90, num_attention_heads=2, num_key_value_heads=2, **sizes)
    for home in (tmp_path / "model", tmp_path / "model" / "drafter"):
        LlamaForCausalLM(config).half().save_pretrained(home)
    left = tmp_path / "model" / "training"
    left.mkdir()
    save_file({"x": torch.zeros(3)}, left / "x.safetensors")
    return tmp_path / "model"


def test_a_value_moves_by_half_a_step_of_its_block():
    generator = torch.Generator().manual_seed(1)
    scale = 10.0 ** torch.randint(-4, 2, (77, 1), generator=generator)
    weight = torch.randn(77, 61, generator=generator) * scale
    back = unpack(pack({"w": weight.half()}))["w"]
    assert back.dtype == torch.float16
    pad = (0, -weight.numel() % BLOCK)
    blocks, again = (
        torch.nn.functional.pad(x.flatten().double(), pad).view(-1, BLOCK)
        for x in (weight.half(), back)
    )
    largest = blocks.abs().amax(1, keepdim=True)
    # half a step, the rounding of the step, and that of the result to half precision
    assert ((again - blocks).abs() <= largest * (0.5 / 127 + 1e-3) + 127 * 2**-25).all()


def test_zeros_stay_zeros():
    assert not unpack(pack({"w": torch.zeros(64, 128).half()}))["w"].any()


def test_what_stays_as_it_is():
    weights = {
        "model.embed_tokens.weight": torch.randn(100, 64).half(),
        "lm_head.weight": torch.randn(100, 64).half(),
        "norm.weight": torch.randn(64).half(),
        "ids": torch.arange(5000),
        "w": torch.randn(64, 64).half(),
    }
    packed = pack(weights)
    assert {name for name in packed if packed[name].dtype == torch.int8} == {"w"}
    back = unpack(packed)
    assert [*back] == [*weights]
    for name in weights.keys() - {"w"}:
        assert torch.equal(back[name], weights[name])


def test_a_packed_folder_is_half_as_large_and_loads_anywhere(folder, tmp_path):
    packed = tmp_path / "packed"
    pack_folder(folder, packed)
    assert not (packed / "training").exists()
    assert is_packed(packed)
    assert not is_packed(folder)
    assert [path.name for path in packed.rglob("*.safetensors")] == ["model.int8.safetensors"] * 2
    tables = 2 * 90 * 64 * 2
    plain, small = (
        sum(f.stat().st_size for f in home.rglob("model*.safetensors")) for home in (folder, packed)
    )
    assert small - 2 * tables < 0.6 * (plain - 2 * tables)

    home = locate(packed, "")
    assert home.parent == tmp_path / "cache"
    for part in (".", "drafter"):
        ours = LlamaForCausalLM.from_pretrained(home / part, dtype=torch.float32)
        truth = LlamaForCausalLM.from_pretrained(folder / part, dtype=torch.float32)
        words = torch.arange(40)[None]
        with torch.no_grad():
            near, exact = ours(words).logits, truth(words).logits
        assert (near - exact).norm() < 0.02 * exact.norm()
        assert not torch.equal(near, exact)
    stamp = (home / "model.safetensors").stat().st_mtime_ns
    assert locate(packed, "") == home
    assert (home / "model.safetensors").stat().st_mtime_ns == stamp
    (packed / "config.json").write_text((packed / "config.json").read_text() + "\n")
    assert locate(packed, "") != home  # another version


def test_a_packed_head_beside_plain_weights_is_unpacked(folder, tmp_path):
    head = folder / "heads/eagle"
    head.mkdir(parents=True)
    save_file(pack({"w": torch.randn(80, 64)}), head / "model.int8.safetensors")
    home = locate(folder, "")
    assert home.parent == tmp_path / "cache"
    assert [path.name for path in (home / "heads/eagle").iterdir()] == ["model.safetensors"]


def test_embedded_models_are_found_by_name(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "MODELS", tmp_path)
    assert embedded_folder("model") == folder
    with pytest.raises(InputError, match="no model 'other' is embedded"):
        embedded_folder("other")


def test_a_damaged_file_and_a_cache_that_cannot_be_written_are_said(folder, tmp_path, monkeypatch):
    packed = tmp_path / "packed"
    pack_folder(folder, packed)
    monkeypatch.setenv("MMSPEC_CACHE", str(folder / "config.json"))
    with pytest.raises(InputError, match="set MMSPEC_CACHE"):
        readable(packed)
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "cache"))
    (packed / "model.int8.safetensors").write_bytes(b"short")
    with pytest.raises(InputError, match=r"can't read weights .*model\.int8\.safetensors"):
        readable(packed)
    assert not list((tmp_path / "cache").iterdir())


def test_training_wants_plain_weights(folder, tmp_path):
    packed = tmp_path / "packed"
    pack_folder(folder, packed)
    with pytest.raises(InputError, match="eight_bit unpack"):
        train("clip", packed)


@pytest.mark.slow
def test_the_command_there_and_back(folder, tmp_path):
    def call(*words):
        command = [sys.executable, "-m", "mmspec.models.eight_bit", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert call("pack", folder, tmp_path / "packed").returncode == 0
    assert call("unpack", tmp_path / "packed", tmp_path / "back").returncode == 0
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config == json.loads((folder / "config.json").read_text())
    unpack_folder(tmp_path / "packed")
    for part in (".", "drafter"):
        name = f"{part}/model.safetensors"
        mine, theirs = load_file(tmp_path / "back" / name), load_file(tmp_path / "packed" / name)
        assert mine.keys() == theirs.keys() == load_file(folder / name).keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    again = call("pack", folder, tmp_path / "packed")
    assert again.returncode == 2
    assert "exists; name a new folder" in again.stderr
    assert call("unpack", tmp_path / "none", tmp_path / "new").returncode == 2


def test_a_full_disk_leaves_nothing_half_packed(folder, tmp_path, full_disk):
    with full_disk(5_000), pytest.raises(InputError, match="too large"):
        pack_folder(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    pack_folder(folder, tmp_path / "out")
    with full_disk(5_000), pytest.raises(InputError, match="too large"):
        readable(tmp_path / "out")
    assert not list((tmp_path / "cache").iterdir())


def test_the_command_refuses_in_one_line(folder, tmp_path, capsys, monkeypatch):
    (folder / "drafter" / "model.safetensors").write_bytes(b"nonsense")
    monkeypatch.setattr(sys, "argv", ["eight_bit", "pack", str(folder), str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "can't read weights" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
