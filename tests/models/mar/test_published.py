"""Published MAR checkpoints and KL-16: every name and shape, strict loading, the arithmetic.

The layouts are written down from the authors' repository (LTH14/mar: `models/mar/transformer.py`,
`models/diffloss.py`, `models/vae.py`, and timm's `Block`), not from our modules.
"""

from __future__ import annotations

import math
from argparse import Namespace

import pytest
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL

from mmspec import ContinuousImagePipeline
from mmspec.errors import InputError
from mmspec.models.mar import published as published_mar
from mmspec.models.mar.autoencoder import decode_tokens, downsample_factor, posterior, tokens_of
from mmspec.models.mar.published import as_autoencoder_kl, load_kl, load_mar
from mmspec.models.mar.transformer import MarTransformer

Layout = dict[str, tuple[int, ...]]
SIZES = {  # width, blocks of either half, heads, head's depth and width, millions of parameters
    "B": (768, 12, 12, 6, 1024, 208),
    "L": (1024, 16, 16, 8, 1280, 479),
    "H": (1280, 20, 16, 12, 1536, 943),
}


def mar_layout(
    width: int,
    depth: int,
    head_depth: int,
    head_width: int,
    length: int = 256,
    buffer: int = 64,
    classes: int = 1000,
    channels: int = 16,
) -> Layout:
    layout: Layout = {
        "class_emb.weight": (classes, width),
        "fake_latent": (1, width),
        "mask_token": (1, 1, width),
        "encoder_pos_embed_learned": (1, buffer + length, width),
        "decoder_pos_embed_learned": (1, buffer + length, width),
        "diffusion_pos_embed_learned": (1, length, width),
    }

    def linear(name: str, out: int, inward: int) -> None:
        layout[f"{name}.weight"], layout[f"{name}.bias"] = (out, inward), (out,)

    def norm(name: str, size: int) -> None:
        layout[f"{name}.weight"] = layout[f"{name}.bias"] = (size,)

    linear("z_proj", width, channels)
    linear("decoder_embed", width, width)
    for name in ("z_proj_ln", "encoder_norm", "decoder_norm"):
        norm(name, width)
    for half in ("encoder", "decoder"):
        for n in range(depth):
            block = f"{half}_blocks.{n}"
            norm(f"{block}.norm1", width)
            linear(f"{block}.attn.qkv", 3 * width, width)
            linear(f"{block}.attn.proj", width, width)
            norm(f"{block}.norm2", width)
            linear(f"{block}.mlp.fc1", 4 * width, width)
            linear(f"{block}.mlp.fc2", width, 4 * width)
    net = "diffloss.net"
    linear(f"{net}.time_embed.mlp.0", head_width, 256)
    linear(f"{net}.time_embed.mlp.2", head_width, head_width)
    linear(f"{net}.cond_embed", head_width, width)
    linear(f"{net}.input_proj", head_width, channels)
    for n in range(head_depth):
        block = f"{net}.res_blocks.{n}"
        norm(f"{block}.in_ln", head_width)
        linear(f"{block}.mlp.0", head_width, head_width)
        linear(f"{block}.mlp.2", head_width, head_width)
        linear(f"{block}.adaLN_modulation.1", 3 * head_width, head_width)
    linear(f"{net}.final_layer.linear", 2 * channels, head_width)
    linear(f"{net}.final_layer.adaLN_modulation.1", 2 * head_width, head_width)
    return layout


def kl_layout(widths: tuple[int, ...] = (128, 128, 256, 256, 512), blocks: int = 2) -> Layout:
    """Attention at the encoder's smallest level and in both middles, nowhere else."""
    layout: Layout = {}

    def conv(name: str, out: int, inward: int, side: int) -> None:
        layout[f"{name}.weight"], layout[f"{name}.bias"] = (out, inward, side, side), (out,)

    def norm(name: str, width: int) -> None:
        layout[f"{name}.weight"] = layout[f"{name}.bias"] = (width,)

    def resnet(name: str, inward: int, out: int) -> None:
        norm(f"{name}.norm1", inward)
        conv(f"{name}.conv1", out, inward, 3)
        norm(f"{name}.norm2", out)
        conv(f"{name}.conv2", out, out, 3)
        if inward != out:
            conv(f"{name}.nin_shortcut", out, inward, 1)

    def attention(name: str, width: int) -> None:
        norm(f"{name}.norm", width)
        for part in ("q", "k", "v", "proj_out"):
            conv(f"{name}.{part}", width, width, 1)

    last, top = len(widths) - 1, widths[-1]
    conv("encoder.conv_in", widths[0], 3, 3)
    conv("decoder.conv_in", top, 16, 3)
    for level, width in enumerate(widths):
        for n in range(blocks):
            inward = width if n or not level else widths[level - 1]
            resnet(f"encoder.down.{level}.block.{n}", inward, width)
            if level == last:
                attention(f"encoder.down.{level}.attn.{n}", width)
        for n in range(blocks + 1):
            inward = width if n or level == last else widths[level + 1]
            resnet(f"decoder.up.{level}.block.{n}", inward, width)
        if level < last:
            conv(f"encoder.down.{level}.downsample.conv", width, width, 3)
        if level:
            conv(f"decoder.up.{level}.upsample.conv", width, width, 3)
    for half, width, out in (("encoder", top, 32), ("decoder", widths[0], 3)):
        resnet(f"{half}.mid.block_1", top, top)
        attention(f"{half}.mid.attn_1", top)
        resnet(f"{half}.mid.block_2", top, top)
        norm(f"{half}.norm_out", width)
        conv(f"{half}.conv_out", out, width, 3)
    conv("quant_conv", 32, 32, 1)
    conv("post_quant_conv", 16, 16, 1)
    return layout


def shapes(model: torch.nn.Module) -> Layout:
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def drawn(layout: Layout, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) / max(1, math.prod(shape[1:])) ** 0.5
        for name, shape in layout.items()
    }


# --- MAR ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_full_sizes_have_the_published_tensors(size):
    width, depth, heads, head_depth, head_width, millions = SIZES[size]
    layout = mar_layout(width, depth, head_depth, head_width)
    weights = {name: torch.empty(shape, device="meta") for name, shape in layout.items()}
    config = published_mar._mar_config(weights, "checkpoint-last.pth")
    assert (config["encoder_num_heads"], config["decoder_num_heads"]) == (heads, heads)
    assert (config["grid"], config["buffer_size"], config["class_num"]) == (16, 64, 1000)
    with torch.device("meta"):
        model = MarTransformer(**config)
    assert shapes(model) == layout
    assert sum(map(math.prod, layout.values())) / 1e6 == pytest.approx(millions, rel=0.005)
    assert model.config.mlp_ratio == 4


TINY = mar_layout(24, 2, 2, 20, length=9, buffer=4, classes=5)


@pytest.fixture
def released(tmp_path, monkeypatch):
    """A random checkpoint as the authors' training leaves it, at a size of no release."""
    monkeypatch.setitem(published_mar.HEADS, 24, 3)
    weights = {name: torch.nn.Parameter(value) for name, value in drawn(TINY).items()}
    state = {
        "model": drawn(TINY, seed=1),
        "model_ema": weights,
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-4}]},
        "epoch": 399,
        "scaler": {"scale": 65536.0},
        "args": Namespace(model="mar_base", vae_stride=16),
    }
    path = tmp_path / "checkpoint-last.pth"
    torch.save(state, path)
    return path, state


def test_averaged_weights_are_loaded(released):
    path, state = released
    model = load_mar(path)
    assert shapes(model) == TINY
    for name, value in model.state_dict().items():
        assert torch.equal(value, state["model_ema"][name])
    assert not model.training
    assert load_mar(path, torch.float16).z_proj.weight.dtype == torch.float16


def test_checkpoint_that_does_not_fit(released):
    path, state = released
    weights = {**state["model_ema"], "decoder_norm.scale": torch.zeros(2)}
    del weights["encoder_blocks.1.attn.proj.bias"]
    torch.save({"model_ema": weights}, path)
    with pytest.raises(InputError) as error:
        load_mar(path)
    assert "missing tensor encoder_blocks.1.attn.proj.bias" in str(error.value)
    assert "unexpected tensor decoder_norm.scale" in str(error.value)
    del weights["z_proj.weight"]
    torch.save({"model_ema": weights}, path)
    with pytest.raises(InputError, match=r"no MAR checkpoint: missing tensor z_proj.weight"):
        load_mar(path)
    torch.save({"model_ema": drawn(mar_layout(40, 1, 1, 20, length=9))}, path)
    with pytest.raises(InputError, match="no released MAR is 40 wide"):
        load_mar(path)


# --- KL-16 ----------------------------------------------------------------------------------------


def test_kl16_is_an_autoencoder_kl():
    layout = kl_layout()
    weights = {name: torch.empty(shape, device="meta") for name, shape in layout.items()}
    config, renamed = as_autoencoder_kl(weights, "kl16.ckpt")
    with torch.device("meta"):
        model = AutoencoderKL(**config)
    assert shapes(model) == {name: tuple(value.shape) for name, value in renamed.items()}
    assert len(renamed) == len(layout)
    assert downsample_factor(model) == 16
    assert config["latent_channels"] == 16


def ldm(w: dict[str, torch.Tensor], half: str, x: torch.Tensor, levels: int, blocks: int):
    """Encoder or decoder in latent diffusion's arithmetic, from its tensor names."""

    def conv(name, x, **options):
        return F.conv2d(x, w[f"{name}.weight"], w[f"{name}.bias"], **options)

    def norm(name, x):
        return F.group_norm(x, 32, w[f"{name}.weight"], w[f"{name}.bias"], 1e-6)

    def resnet(name, x):
        h = conv(f"{name}.conv1", F.silu(norm(f"{name}.norm1", x)), padding=1)
        h = conv(f"{name}.conv2", F.silu(norm(f"{name}.norm2", h)), padding=1)
        return h + (conv(f"{name}.nin_shortcut", x) if f"{name}.nin_shortcut.bias" in w else x)

    def attention(name, x):
        q, k, v = (conv(f"{name}.{p}", norm(f"{name}.norm", x)).flatten(2) for p in "qkv")
        weights = (q.mT @ k * q.shape[1] ** -0.5).softmax(-1)
        return x + conv(f"{name}.proj_out", (v @ weights.mT).view_as(x))

    def middle(x):
        x = attention(f"{half}.mid.attn_1", resnet(f"{half}.mid.block_1", x))
        return resnet(f"{half}.mid.block_2", x)

    x = conv(f"{half}.conv_in", x, padding=1)
    if half == "decoder":
        x = middle(x)
        for level in reversed(range(levels)):
            for n in range(blocks + 1):
                x = resnet(f"decoder.up.{level}.block.{n}", x)
            if level:
                x = F.interpolate(x, scale_factor=2.0, mode="nearest")
                x = conv(f"decoder.up.{level}.upsample.conv", x, padding=1)
    else:
        for level in range(levels):
            for n in range(blocks):
                x = resnet(f"encoder.down.{level}.block.{n}", x)
                if level == levels - 1:
                    x = attention(f"encoder.down.{level}.attn.{n}", x)
            if level < levels - 1:
                name = f"encoder.down.{level}.downsample.conv"
                x = conv(name, F.pad(x, (0, 1, 0, 1)), stride=2)
        x = middle(x)
    return conv(f"{half}.conv_out", F.silu(norm(f"{half}.norm_out", x)), padding=1)


@pytest.fixture
def small_kl(tmp_path):
    """A random autoencoder in the released format, with three levels: file and tensors."""
    weights = drawn(kl_layout((32, 32, 64)))
    path = tmp_path / "kl16.ckpt"
    torch.save({"model": weights}, path)
    return path, weights


@torch.no_grad()
def test_kl_is_latent_diffusions(small_kl):
    path, w = small_kl
    vae = load_kl(path)
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    moments = F.conv2d(
        ldm(w, "encoder", pixels, 3, 2), w["quant_conv.weight"], w["quant_conv.bias"]
    )
    mean, log = moments.chunk(2, dim=1)
    law = posterior(vae, pixels)
    assert torch.allclose(law.mean, mean, atol=1e-4)
    assert torch.allclose(law.std, (0.5 * log).exp(), atol=1e-4)
    tokens = tokens_of(vae, mean)
    assert torch.allclose(tokens[1, 6], 0.2325 * mean[1, :, 1, 2], atol=1e-6)
    z = F.conv2d(mean, w["post_quant_conv.weight"], w["post_quant_conv.bias"])
    assert torch.allclose(decode_tokens(vae, tokens), ldm(w, "decoder", z, 3, 2), atol=1e-3)


def test_attention_in_the_decoders_levels_is_read_from_the_tensors(small_kl):
    """Latent diffusion's own f = 16 autoencoder has it; so has the discriminator beside it."""
    path, w = small_kl
    for n in range(3):
        for name in [name for name in w if name.startswith("decoder.mid.attn_1.")]:
            part = name.removeprefix("decoder.mid.attn_1.")
            w[f"decoder.up.2.attn.{n}.{part}"] = w[name].clone()
    w["loss.logvar"] = torch.zeros(())
    torch.save({"state_dict": w}, path)
    vae = load_kl(path, scale=1.0)
    assert vae.config.up_block_types[0] == "AttnUpDecoderBlock2D"
    assert (
        sum(v.numel() for v in vae.state_dict().values()) == sum(v.numel() for v in w.values()) - 1
    )


def test_kl_that_does_not_fit(small_kl):
    path, w = small_kl
    w["encoder.mid.extra"] = w.pop("encoder.mid.block_1.norm1.bias")
    torch.save({"model": w}, path)
    with pytest.raises(InputError) as error:
        load_kl(path)
    assert "missing tensor encoder.mid_block.resnets.0.norm1.bias" in str(error.value)
    assert "unexpected tensor encoder.mid.extra" in str(error.value)
    torch.save({"model": {"a": torch.zeros(1)}}, path)
    with pytest.raises(InputError, match="no KL autoencoder in latent diffusion's layout"):
        load_kl(path)


# --- both -----------------------------------------------------------------------------------------


def test_released_files_draw_pictures(released, small_kl):
    pipe = ContinuousImagePipeline.from_mar(released[0], small_kl[0])
    pipe.set_progress_bar_config(disable=True)
    out = pipe(class_labels=[4, 0], num_iterations=3, diffusion_steps=4, output_type="np")
    assert out.images.shape == (2, 12, 12, 3)
    assert (out.stats.backbone_calls, out.stats.head_calls) == (3, 12)
