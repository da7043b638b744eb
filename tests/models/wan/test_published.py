"""Published Wan2.1 and Self-Forcing checkpoints: names and shapes, strict loading, a round trip.

The layout is written down from the authors' repositories (Wan-Video/Wan2.1: `wan/modules/model.py`;
guandeh17/Self-Forcing: `wan/modules/causal_model.py`) and their published `config.json`.
"""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import save_file
from wans import SIZE, latents, rand

from mmspec.errors import InputError
from mmspec.models.loading import load_model
from mmspec.models.wan.published import load_wan
from mmspec.models.wan.transformer import WanTransformer

Layout = dict[str, tuple[int, ...]]
SHARED = {"eps": 1e-6, "freq_dim": 256, "in_dim": 16, "out_dim": 16, "text_len": 512}
SIZES = {  # as published, and millions of parameters
    "1.3B": ({"dim": 1536, "ffn_dim": 8960, "num_heads": 12, "num_layers": 30}, 1419.0),
    "14B": ({"dim": 5120, "ffn_dim": 13824, "num_heads": 40, "num_layers": 40}, 14288.5),
}


def wan_layout(
    dim: int,
    ffn: int,
    layers: int,
    channels: int = 16,
    text: int = 4096,
    waves: int = 256,
) -> Layout:
    layout: Layout = {
        "patch_embedding.weight": (dim, channels, 1, 2, 2),
        "patch_embedding.bias": (dim,),
        "head.modulation": (1, 2, dim),
    }

    def linear(name: str, out: int, inward: int) -> None:
        layout[f"{name}.weight"], layout[f"{name}.bias"] = (out, inward), (out,)

    linear("text_embedding.0", dim, text)
    linear("text_embedding.2", dim, dim)
    linear("time_embedding.0", dim, waves)
    linear("time_embedding.2", dim, dim)
    linear("time_projection.1", 6 * dim, dim)
    linear("head.head", 4 * channels, dim)
    for n in range(layers):
        block = f"blocks.{n}"
        layout[f"{block}.modulation"] = (1, 6, dim)
        layout[f"{block}.norm3.weight"] = layout[f"{block}.norm3.bias"] = (dim,)
        for attention in ("self_attn", "cross_attn"):
            for part in "qkvo":
                linear(f"{block}.{attention}.{part}", dim, dim)
            layout[f"{block}.{attention}.norm_q.weight"] = (dim,)
            layout[f"{block}.{attention}.norm_k.weight"] = (dim,)
        linear(f"{block}.ffn.0", ffn, dim)
        linear(f"{block}.ffn.2", dim, ffn)
    return layout


def shapes(model: torch.nn.Module) -> Layout:
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def drawn(layout: Layout, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) / max(1, math.prod(shape[1:])) ** 0.5
        for name, shape in layout.items()
    }


@pytest.mark.parametrize("size", SIZES)
def test_full_sizes_have_the_published_tensors(size):
    config, millions = SIZES[size]
    with torch.device("meta"):
        model = WanTransformer.from_config({**SHARED, **config})
    layout = wan_layout(config["dim"], config["ffn_dim"], config["num_layers"])
    assert shapes(model) == layout
    assert sum(map(math.prod, layout.values())) / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize("size", SIZES)
def test_sizes_are_read_from_the_tensors(size, tmp_path, monkeypatch):
    """Of the causal checkpoints, which say nothing else."""
    config, _ = SIZES[size]
    layout = wan_layout(config["dim"], config["ffn_dim"], config["num_layers"])
    weights = {f"model.{name}": torch.empty(s, device="meta") for name, s in layout.items()}
    monkeypatch.setattr("mmspec.models.wan.published.read_tensors", lambda *_: weights)
    monkeypatch.setattr("mmspec.models.wan.published.cast", lambda model, dtype: model)
    model = load_wan(tmp_path / "model.pt", window=6, sink=1)
    for name, value in {**SHARED, **config, "text_dim": 4096, "window": 6, "sink": 1}.items():
        assert model.config[name] == value, name
    assert model.config.num_frame_per_block == 3


TINY = wan_layout(48, 40, 3, channels=4, text=10, waves=32)
TOLD = {"_class_name": "WanModel", "model_type": "t2v", "num_heads": 2, "num_layers": 3, "dim": 48}


@pytest.fixture
def causal(tmp_path):
    """A random checkpoint as Self-Forcing's training leaves it, at a size of no release."""
    path = tmp_path / "self_forcing_dmd.pt"
    wrapped = {f"model._fsdp_wrapped_module.{name}": x for name, x in drawn(TINY).items()}
    plain = {f"model.{name}": x for name, x in drawn(TINY, seed=1).items()}
    torch.save({"generator": plain, "generator_ema": wrapped, "critic": plain}, path)
    return path, plain


@pytest.fixture
def folder(tmp_path):
    """A random model as Wan2.1 is published: two shards and a configuration."""
    weights = drawn(TINY)
    names = sorted(weights)
    shards = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: weights[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (tmp_path / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps({**TOLD, "text_len": 7}))
    return tmp_path


def velocities(model: WanTransformer, seed: int = 0) -> torch.Tensor:
    """Of the second block of a clip."""
    with torch.no_grad():
        cache = model.start(rand(1, 5, 10).float(), *SIZE, 2)
        frames = latents(1, 2 * model.config.num_frame_per_block).float()
        first, second = frames.chunk(2, dim=1)
        model.commit(first, cache)
        return model.denoise(second, 625.0, cache)


def test_averaged_weights_are_loaded(causal, tmp_path):
    path, plain = causal
    model = load_wan(path, num_heads=2)
    assert shapes(model) == TINY
    for name, value in drawn(TINY).items():
        assert torch.equal(model.state_dict()[name], value)
    assert not model.training
    found = velocities(model)
    assert found.shape == (1, 3, 4, *SIZE)
    assert found.std() > 0.01
    model.save_pretrained(tmp_path / "saved")
    for again in (load_model(WanTransformer, tmp_path / "saved"), load_wan(tmp_path / "saved")):
        assert again.config.num_heads == 2
        assert all(map(torch.equal, again.state_dict().values(), model.state_dict().values()))
        assert torch.allclose(velocities(again), found, rtol=1e-4, atol=1e-4)
    torch.save({"generator": plain}, path)
    other = load_wan(path, torch.bfloat16, num_heads=2, num_frame_per_block=1)
    assert other.head.head.weight.dtype == torch.bfloat16
    assert torch.equal(other.head.modulation, plain["model.head.modulation"].bfloat16())
    assert velocities(other).shape == (1, 1, 4, *SIZE)


def test_published_folder_is_loaded(folder, causal):
    model = load_wan(folder)
    assert (model.config.text_len, model.config.num_heads, model.config.text_dim) == (7, 2, 10)
    same = load_wan(causal[0], num_heads=2, text_len=7)
    assert torch.allclose(velocities(model), velocities(same), rtol=1e-4, atol=1e-4)


def test_folders_of_other_models(folder):
    for change, message in {
        ("_class_name", "WanTransformer3DModel"): "holds a WanTransformer3DModel",
        ("model_type", "i2v"): "holds a model for i2v",
        ("num_layers", 4): r"missing tensor blocks.3.modulation.* \(and 2. more\)",
        ("ffn_dim", 41): r"tensor blocks.0.ffn.0.weight has shape \(40, 48\), expected \(41, 48\)",
        ("num_heads", 7): "is no Wan: dim 48 can't be cut into 7 heads",
    }.items():
        (folder / "config.json").write_text(json.dumps({**TOLD, change[0]: change[1]}))
        with pytest.raises(InputError, match=message):
            load_wan(folder)


def test_the_window_of_a_causal_folder(folder):
    """It counts frames, and the block itself: one in front, one at the beginning, its own."""
    told = {**TOLD, "_class_name": "CausalWanModel", "local_attn_size": 9, "sink_size": 3}
    file = folder / "config.json"
    file.write_text(json.dumps(told))
    model = load_wan(folder)
    assert (model.window.blocks, model.window.sink) == (1, 1)
    model = load_wan(folder, window=4)
    assert (model.window.blocks, model.window.sink) == (4, 0)
    file.write_text(json.dumps({**told, "local_attn_size": -1, "sink_size": 0}))
    assert load_wan(folder).window.blocks is None
    file.write_text(json.dumps({**told, "local_attn_size": 8}))
    with pytest.raises(InputError, match="no whole blocks of 3 frames"):
        load_wan(folder)


def test_checkpoint_that_does_not_fit(causal):
    path, plain = causal
    del plain["model.blocks.1.cross_attn.norm_k.weight"]
    plain["model.img_emb.proj.0.weight"] = torch.zeros(2)
    plain["model.blocks.2.ffn.2.bias"] = torch.zeros(47)
    torch.save({"generator": plain}, path)
    with pytest.raises(InputError) as error:
        load_wan(path, num_heads=2)
    assert "missing tensor blocks.1.cross_attn.norm_k.weight" in str(error.value)
    assert "unexpected tensor img_emb.proj.0.weight" in str(error.value)
    assert "tensor blocks.2.ffn.2.bias has shape (47,), expected (48,)" in str(error.value)
    assert "\n" not in str(error.value)
    del plain["model.time_embedding.0.weight"]
    torch.save({"generator": plain}, path)
    with pytest.raises(InputError, match=r"no Wan checkpoint: missing tensor time_embedding\.0"):
        load_wan(path)
    torch.save({"generator": {"patch_embedding.weight": torch.zeros(())}}, path)
    with pytest.raises(InputError, match="another number of dimensions"):
        load_wan(path)
