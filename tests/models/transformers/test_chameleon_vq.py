"""Chameleon's image decoder: the published layout, diffusers' network, files.

The layout is written down from the authors' repository (facebookresearch/chameleon:
`chameleon/inference/vqgan.py`, which is CompVis/taming-transformers' `taming/models/vqgan.py`) with
the sizes of the configuration published as leloy/Anole-7b-v0.1-vqvae-hf, not from our modules.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from diffusers import VQModel as DiffusersVQModel
from safetensors.torch import save_file
from transformers.models.chameleon import ChameleonVQVAEConfig
from transformers.models.chameleon.modeling_chameleon import ChameleonVQVAE

from mmspec.errors import InputError
from mmspec.models.transformers.chameleon import ChameleonVQDecoder, read_vqgan

Layout = dict[str, tuple[int, ...]]
TINY = ChameleonVQVAEConfig(
    embed_dim=16,
    num_embeddings=40,
    latent_channels=32,
    base_channels=32,
    channel_multiplier=[1, 2, 2],
    num_res_blocks=1,
)


def vqgan_layout(
    widths: tuple[int, ...] = (128, 128, 256, 256, 512),
    blocks: int = 2,
    z: int = 256,
    dim: int = 256,
    codes: int = 8192,
) -> Layout:
    """`attn_resolutions: []`: attention in the middle alone."""
    layout: Layout = {}

    def conv(name: str, outward: int, inward: int, side: int) -> None:
        layout[f"{name}.weight"] = (outward, inward, side, side)
        layout[f"{name}.bias"] = (outward,)

    def norm(name: str, width: int) -> None:
        layout[f"{name}.weight"] = layout[f"{name}.bias"] = (width,)

    def resnet(name: str, inward: int, outward: int) -> None:
        norm(f"{name}.norm1", inward)
        conv(f"{name}.conv1", outward, inward, 3)
        norm(f"{name}.norm2", outward)
        conv(f"{name}.conv2", outward, outward, 3)
        if inward != outward:
            conv(f"{name}.nin_shortcut", outward, inward, 1)

    def ends(half: str, first: tuple[int, int], last: tuple[int, int]) -> None:
        conv(f"{half}.conv_in", *first, 3)
        resnet(f"{half}.mid.block_1", widths[-1], widths[-1])
        norm(f"{half}.mid.attn_1.norm", widths[-1])
        for part in ("q", "k", "v", "proj_out"):
            conv(f"{half}.mid.attn_1.{part}", widths[-1], widths[-1], 1)
        resnet(f"{half}.mid.block_2", widths[-1], widths[-1])
        norm(f"{half}.norm_out", last[1])
        conv(f"{half}.conv_out", *last, 3)

    top = len(widths) - 1
    for level, width in enumerate(widths):
        finer, coarser = widths[max(level - 1, 0)], widths[min(level + 1, top)]
        for n in range(blocks):
            resnet(f"encoder.down.{level}.block.{n}", width if n else finer, width)
        for n in range(blocks + 1):
            resnet(f"decoder.up.{level}.block.{n}", width if n else coarser, width)
        if level < top:
            conv(f"encoder.down.{level}.downsample.conv", width, width, 3)
        if level > 0:
            conv(f"decoder.up.{level}.upsample.conv", width, width, 3)
    ends("encoder", (widths[0], 3), (z, widths[-1]))
    ends("decoder", (widths[-1], z), (3, widths[0]))
    conv("quant_conv", dim, z, 1)
    conv("post_quant_conv", z, dim, 1)
    layout["quantize.embedding.weight"] = (codes, dim)
    return layout


def tiny_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    layout = vqgan_layout((32, 64, 64), blocks=1, z=32, dim=16, codes=40)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in layout.items():
        noise = torch.randn(shape, generator=generator)
        fan_in = math.prod(shape[1:]) if len(shape) > 1 else 10
        weights[name] = noise / fan_in**0.5 + float("norm" in name and name.endswith("weight"))
    return weights


def decoder_of(weights: dict[str, torch.Tensor]) -> ChameleonVQDecoder:
    decoder = ChameleonVQDecoder(TINY)
    half = "decoder."
    decoder.load_state_dict(
        {name.removeprefix(half): w for name, w in weights.items() if name.startswith(half)}
    )
    return decoder


def test_full_size_has_the_published_tensors():
    layout = vqgan_layout()
    with torch.device("meta"):  # what transformers has of it, and what we add
        tokenizer = ChameleonVQVAE(ChameleonVQVAEConfig())
        tokenizer.decoder = ChameleonVQDecoder(ChameleonVQVAEConfig())
    found = {name: tuple(value.shape) for name, value in tokenizer.state_dict().items()}
    assert found == layout
    # the published model.safetensors: 275 MB in float32
    assert sum(math.prod(shape) for shape in layout.values()) * 4 / 1e6 == pytest.approx(275, abs=1)


def diffusers_name(name: str, levels: int) -> str:
    """Where diffusers' VQModel keeps a published tensor."""
    half, *rest = name.split(".")
    if half not in ("encoder", "decoder"):
        return name
    attention = {
        "norm": "group_norm",
        "q": "to_q",
        "k": "to_k",
        "v": "to_v",
        "proj_out": "to_out.0",
    }
    match rest:
        case ["mid", "attn_1", part, kind]:
            return f"{half}.mid_block.attentions.0.{attention[part]}.{kind}"
        case ["mid", block, *tail]:
            tail = ".".join(tail)
            return f"{half}.mid_block.resnets.{int(block[-1]) - 1}.{tail}"
        case ["down", level, "block", n, *tail]:
            out = f"down_blocks.{level}.resnets.{n}." + ".".join(tail)
        case ["up", level, "block", n, *tail]:
            out = f"up_blocks.{levels - 1 - int(level)}.resnets.{n}." + ".".join(tail)
        case ["down", level, "downsample", *tail]:
            out = f"down_blocks.{level}.downsamplers.0." + ".".join(tail)
        case ["up", level, "upsample", *tail]:
            out = f"up_blocks.{levels - 1 - int(level)}.upsamplers.0." + ".".join(tail)
        case ["norm_out", kind]:
            out = f"conv_norm_out.{kind}"
        case _:
            out = ".".join(rest)
    return f"{half}.{out}".replace("nin_shortcut", "conv_shortcut")


@torch.no_grad()
def test_decodes_as_diffusers_network():
    weights = tiny_weights()
    theirs = DiffusersVQModel(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(32, 64, 64),
        layers_per_block=1,
        latent_channels=32,
        num_vq_embeddings=40,
        vq_embed_dim=16,
        lookup_from_codebook=True,
    )
    mapped = {diffusers_name(name, 3): value for name, value in weights.items()}
    wanted = theirs.state_dict()
    mapped = {  # 1×1 convolutions of the middle's attention are matrices there
        name: value[..., 0, 0] if value.ndim > wanted[name].ndim else value
        for name, value in mapped.items()
    }
    theirs.load_state_dict(mapped)
    tokens = torch.randint(40, (2, 15), generator=torch.Generator().manual_seed(1))
    truth = theirs.decode(tokens, force_not_quantize=True, shape=(2, 3, 5, 16)).sample
    assert truth.shape == (2, 3, 12, 20)
    latents = weights["quantize.embedding.weight"][tokens].view(2, 3, 5, 16).permute(0, 3, 1, 2)
    latents = F.conv2d(latents, weights["post_quant_conv.weight"], weights["post_quant_conv.bias"])
    assert torch.allclose(decoder_of(weights)(latents), truth, atol=1e-5)


def test_files(tmp_path):
    """As taming-transformers' trainer saves it, its loss included; and as safetensors."""
    weights = tiny_weights()
    loss = {"loss.discriminator.main.0.weight": torch.zeros(64, 3, 4, 4)}
    torch.save({"state_dict": weights | loss}, tmp_path / "vqgan.ckpt")
    save_file(weights | loss, tmp_path / "vqgan.safetensors")
    for name in ("vqgan.ckpt", "vqgan.safetensors"):
        read = read_vqgan(tmp_path / name)
        assert read.keys() == weights.keys()
        assert all(torch.equal(read[key], value) for key, value in weights.items())
    with pytest.raises(InputError, match=r"odd\.ckpt"):
        read_vqgan(tmp_path / "odd.ckpt")


@pytest.mark.parametrize(
    "option",
    [{"attn_resolutions": [16]}, {"double_latent": True}, {"attn_type": "none"}],
    ids=str,
)
def test_other_networks_are_refused(option):
    with pytest.raises(InputError, match="no released image tokenizer"):
        ChameleonVQDecoder(ChameleonVQVAEConfig(**option))
