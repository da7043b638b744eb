"""Folders that lie about their weights, or name weights that are none of theirs: one line each."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL
from mars import tiny_mar, tiny_vae
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5EncoderModel
from wans import tiny_wan

from mmspec.errors import InputError
from mmspec.files import read_object
from mmspec.models.bounded_init import bounded_init, check_layers
from mmspec.models.llamagen.eagle_head import EagleHead
from mmspec.models.llamagen.transformer import LlamaGenTransformer
from mmspec.models.llamagen.vq import VQModel
from mmspec.models.loading import WEIGHTS, load_component, load_model, read_weights
from mmspec.models.mar.transformer import MarTransformer
from mmspec.models.wan.published import load_wan
from mmspec.models.wan.transformer import WanTransformer

HUGE = 10**7


def llama() -> LlamaForCausalLM:
    small = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, vocab_size=16)
    return LlamaForCausalLM(LlamaConfig(**small, num_attention_heads=2, num_key_value_heads=2))


def t5() -> T5EncoderModel:
    return T5EncoderModel(T5Config(vocab_size=16, d_model=8, d_kv=4, d_ff=8, num_layers=1))


TINY = {
    "llamagen": lambda: LlamaGenTransformer(64, 16, 32, 1, 2, cls_token_num=4, caption_dim=8),
    "vq": lambda: VQModel(codebook_size=64, ch=32, ch_mult=(1,), num_res_blocks=1, z_channels=32),
    "mar": tiny_mar,
    "kl": tiny_vae,
    "wan": tiny_wan,
    "t5": t5,
    "llama": llama,
}
# what is said of a size, and in what model
LIES = [
    ("llamagen", LlamaGenTransformer, "n_layer", HUGE),
    ("llamagen", LlamaGenTransformer, "vocab_size", 10**12),
    ("llamagen", LlamaGenTransformer, "dim", 10**6),
    ("vq", VQModel, "num_res_blocks", HUGE),
    ("vq", VQModel, "ch_mult", [1] * 5000),
    ("mar", MarTransformer, "encoder_depth", HUGE),
    ("mar", MarTransformer, "diffloss_d", HUGE),
    ("kl", AutoencoderKL, "layers_per_block", HUGE),
    ("wan", WanTransformer, "num_layers", HUGE),
    ("t5", T5EncoderModel, "num_layers", HUGE),
    ("t5", T5EncoderModel, "num_layers", 4000),
    ("llama", LlamaForCausalLM, "num_hidden_layers", 10**10),
    ("llama", LlamaForCausalLM, "intermediate_size", 10**9),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("honest")
    for name, make in TINY.items():
        make().save_pretrained(home / name)
    return {name: home / name for name in TINY}


def one_line(caught) -> str:
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("name", "kind", "size", "said"), LIES, ids=lambda v: str(v)[:20])
def test_sizes_are_those_of_the_weights(folders, tmp_path, name, kind, size, said):
    """Noticed while the network is made, long before it is as large as it is said to be."""
    assert load_component(kind, folders[name], torch.float32) is not None
    folder = shutil.copytree(folders[name], tmp_path / name)
    config = read_object(folder / "config.json")
    assert size in config
    (folder / "config.json").write_text(json.dumps({**config, size: said}))
    with pytest.raises(InputError, match="far larger than its weights") as caught:
        load_component(kind, folder, torch.float32)
    assert str(folder) in one_line(caught)


def test_wan_as_released(folders, tmp_path):
    folder = shutil.copytree(folders["wan"], tmp_path / "wan")
    (folder / "config.json").write_text('{"_class_name": "WanModel", "num_layers": 10000000}')
    with pytest.raises(InputError, match="far larger than its weights"):
        load_wan(folder)


def test_draft_head(tmp_path):
    head = EagleHead(dim=8, n_head=2, hidden_dim=16)
    head.save_pretrained(tmp_path)
    config = read_object(tmp_path / "config.json")
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_dim": 10**9}))
    with pytest.raises(InputError, match="far larger than its weights"):
        load_model(EagleHead, tmp_path)


def test_bound_is_of_the_thread_and_ends():
    def many():
        return torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(3000))

    with (
        pytest.raises(InputError, match="1 tensors of 6 values"),
        bounded_init({"w": torch.empty(2, 3)}, "x"),
    ):
        many()
    many()
    with bounded_init({f"w{n}": torch.empty(1) for n in range(3000)}, "x"):
        many()


def test_layers_are_looked_for_everywhere():
    shapes = {"w": torch.empty(1)}
    for config in (
        {"num_hidden_layers": 5000},
        {"text_config": {"n_layers": 5000}},
        {"parts": [{"encoder_depth": 5000}]},
        {"num_decoder_layers": 5000},
    ):
        with pytest.raises(InputError, match="far larger"):
            check_layers(config, shapes, "x")
    check_layers({"max_position_embeddings": 10**6, "num_layers": 4000}, shapes, "x")


# --- files --------------------------------------------------------------------------------------


@pytest.fixture
def folder(folders, tmp_path) -> Path:
    return shutil.copytree(folders["llamagen"], tmp_path / "home" / "llamagen")


@pytest.mark.parametrize("file", [WEIGHTS, "config.json"])
def test_pipe_is_not_waited_for(folder, file):
    (folder / file).unlink()
    os.mkfifo(folder / file)
    with pytest.raises(InputError, match="no regular file") as caught:
        load_model(LlamaGenTransformer, folder)
    assert file in one_line(caught)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "generation_config.json"])
def test_pipe_in_a_folder_of_transformers(folders, tmp_path, file):
    folder = shutil.copytree(folders["llama"], tmp_path / "llama")
    (folder / file).unlink(missing_ok=True)
    os.mkfifo(folder / file)
    with pytest.raises(InputError, match="no regular file"):
        load_component(LlamaForCausalLM, folder, torch.float32)


def sharded(folder: Path, file: str, shards: list[str]) -> None:
    """An index in the place of a file, all of whose tensors lie in the first shard."""
    weights = load_file(folder / file)
    (folder / file).unlink()
    (folder / shards[0]).parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / shards[0], metadata={"format": "pt"})
    positions = {name: shards[n % len(shards)] for n, name in enumerate(weights)}
    (folder / f"{file}.index.json").write_text(json.dumps({"weight_map": positions}))


@pytest.mark.parametrize("shard", ["../../../elsewhere/w.safetensors", "/ABSOLUTE/w.safetensors"])
@pytest.mark.parametrize("name", ["llamagen", "llama"])
def test_shards_lie_in_the_folder(folders, tmp_path, name, shard):
    folder = shutil.copytree(folders[name], tmp_path / "a" / "b" / name)
    shard = shard.replace("/ABSOLUTE", str(tmp_path / "other"))
    sharded(folder, WEIGHTS if name == "llamagen" else "model.safetensors", [shard])
    kind = LlamaGenTransformer if name == "llamagen" else LlamaForCausalLM
    with pytest.raises(InputError, match="lies outside of") as caught:
        load_component(kind, folder, torch.float32)
    assert shard in one_line(caught)


def test_link_out_of_the_folder(folder, tmp_path):
    moved = (folder / WEIGHTS).rename(tmp_path / "secret.safetensors")
    (folder / WEIGHTS).symlink_to(moved)
    with pytest.raises(InputError, match="lies outside of"):
        read_weights(folder)
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(tmp_path / "absent")
    with pytest.raises(InputError, match="no weights file"):
        read_weights(folder)


@pytest.mark.parametrize("name", ["llamagen", "llama"])
def test_cache_of_the_hub_is_read(folders, tmp_path, name):
    """Its snapshots are links to blobs beside them; so are those of a pipeline's components."""
    repo = tmp_path / "models--someone--model"
    component = repo / "snapshots" / "0123abcd" / "transformer"
    (repo / "blobs").mkdir(parents=True)
    component.mkdir(parents=True)
    for number, file in enumerate(sorted(folders[name].iterdir())):
        blob = shutil.copy(file, repo / "blobs" / f"hash{number}")
        (component / file.name).symlink_to(os.path.relpath(blob, component))
    kind = LlamaGenTransformer if name == "llamagen" else LlamaForCausalLM
    assert load_component(kind, component, torch.float32) is not None
    linked = tmp_path / "linked"
    linked.symlink_to(component)  # a folder itself may be a link
    assert load_component(kind, linked, torch.float32) is not None


# --- contents -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llamagen", "llama"])
def test_whole_numbers_are_no_weights(folders, tmp_path, name):
    folder = shutil.copytree(folders[name], tmp_path / name)
    (file,) = folder.glob("*.safetensors")
    weights = load_file(file)
    weights["norm.weight" if name == "llamagen" else "model.norm.weight"] = torch.ones(
        32 if name == "llamagen" else 16, dtype=torch.int8
    )
    save_file(weights, file, metadata={"format": "pt"})
    kind = LlamaGenTransformer if name == "llamagen" else LlamaForCausalLM
    with pytest.raises(InputError) as caught:
        load_component(kind, folder, torch.float32)
    assert str(folder) in one_line(caught)
    assert "norm.weight holds whole numbers" in str(caught.value)


@pytest.mark.parametrize("name", ["llamagen", "llama"])
@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_deeply_nested_config(folders, tmp_path, name, text):
    folder = shutil.copytree(folders[name], tmp_path / name)
    (folder / "config.json").write_text(text)
    kind = LlamaGenTransformer if name == "llamagen" else LlamaForCausalLM
    with pytest.raises(InputError, match="nested too deeply") as caught:
        load_component(kind, folder, torch.float32)
    one_line(caught)
