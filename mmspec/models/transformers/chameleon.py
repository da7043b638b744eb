"""Chameleon with an image decoder: the network of Anole and of Lumina-mGPT.

transformers has the rest of it. Three forms of checkpoints are published, all with `model_type`
chameleon: Anole's for transformers, which holds the image decoder under `model.vqmodel.`
(leloy/Anole-7b-v0.1-hf, the form written here); Chameleon's, which lacks the decoder; and
Lumina-mGPT's (Alpha-VLLM/Lumina-mGPT-7B-768 and its siblings), which lacks the image tokenizer and
has its query and key norms per shard of its training, where transformers has them per head. What is
missing is read from Meta's `vqgan.ckpt` beside the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import ChameleonConfig, ChameleonForConditionalGeneration
from transformers.models.chameleon import ChameleonVQVAEConfig

from ...errors import InputError
from ..llamagen.vq import AttnBlock, Coder, Resample, ResnetBlock
from ..loading import read_weights
from ..weights import WRAPPED, read_tensors

ANOLE, LUMINA = "anole", "lumina-mgpt"
IMAGE_TOKENIZER = "model.vqmodel."
# where Meta and the authors of Anole publish the image tokenizer, and shorter names
VQGAN_FILES = ("tokenizer/vqgan.ckpt", "vqgan.ckpt", "vqgan.safetensors")
LOSSES = "loss."  # of its training: the perceptual loss and the discriminator


class ChameleonForImageGeneration(ChameleonForConditionalGeneration):
    """transformers' Chameleon, its image tokenizer with a decoder.

    `config.image_layout` says how pictures lie in its sequences: "anole" or "lumina-mgpt". A
    checkpoint whose configuration does not say it has Lumina-mGPT's layout if its query norms are
    stored as Lumina-mGPT's authors do, else Anole's; `save_pretrained` writes it down.
    """

    config: ChameleonConfig
    layouts: ClassVar = (ANOLE, LUMINA)

    def __init__(self, config: ChameleonConfig) -> None:
        if not config.vocabulary_map:
            raise InputError("the configuration has no vocabulary_map: which words are codes?")
        super().__init__(config)
        layout = getattr(config, "image_layout", ANOLE)
        if layout not in self.layouts:
            raise InputError(f"image_layout must be {' or '.join(self.layouts)}, not {layout!r}")
        config.image_layout = layout
        self.model.vqmodel.decoder = ChameleonVQDecoder(config.vq_config)
        self.post_init()

    @classmethod
    def from_pretrained(cls, folder: str | Path, **kwargs: Any) -> Any:
        """A folder in any of the published forms; `kwargs` as in transformers.

        Raises:
            InputError: unreadable, or no image decoder in the folder.
        """
        folder = Path(folder)
        config = ChameleonConfig.from_pretrained(folder)
        weights = read_weights(folder, "model.safetensors")
        sharded = {
            name: heads for name, value in weights.items() if (heads := _heads(name, value, config))
        }
        if sharded:
            config.image_layout = getattr(config, "image_layout", LUMINA)
        for name, heads in sharded.items():  # neighbouring heads share a shard's norm
            weights[name] = weights[name].repeat_interleave(heads // len(weights[name]), 0)
        if not any(name.startswith(f"{IMAGE_TOKENIZER}decoder.") for name in weights):
            weights = _image_tokenizer(folder) | weights
        return super().from_pretrained(None, config=config, state_dict=weights, **kwargs)


class ChameleonVQDecoder(Coder):
    """Latents `[B, C, h, w]`, after `post_quant_conv`, to pixels `[B, 3, H, W]` around [-1, 1].

    The decoder of the VQ image tokenizer, which transformers' `ChameleonVQVAE` lacks (Gafni et al.
    2022, "Make-A-Scene", section 3.2), under the names of `vqgan.ckpt`: the layout of
    taming-transformers (`taming/modules/diffusionmodules/model.py`). Its layers are those of
    LlamaGen's tokenizer; attention is in the middle alone.

    Args:
        config: sizes; the defaults are the released ones.

    Raises:
        InputError: attention elsewhere than in the middle, or a variance beside the latents: no
            released tokenizer has them.
    """

    def __init__(self, config: ChameleonVQVAEConfig) -> None:
        super().__init__()
        if config.attn_resolutions or config.attn_type != "vanilla" or config.double_latent:
            raise InputError(
                "vq_config asks for attn_resolutions, another attn_type or double_latent, which no "
                "released image tokenizer of Chameleon has"
            )
        widths = [config.base_channels * mult for mult in config.channel_multiplier]
        last = widths[-1]
        self.conv_in = nn.Conv2d(config.latent_channels, last, 3, padding=1)
        middle = ResnetBlock(last, last), AttnBlock(last), ResnetBlock(last, last)
        self.mid = nn.ModuleDict(dict(zip(("block_1", "attn_1", "block_2"), middle, strict=True)))
        self.up = nn.ModuleList(  # finest first, though it runs last
            _Level(coarser, width, config.num_res_blocks + 1, upsample=level > 0)
            for level, (width, coarser) in enumerate(zip(widths, [*widths[1:], last], strict=True))
        )
        self.norm_out = nn.GroupNorm(32, widths[0], eps=1e-6)
        self.conv_out = nn.Conv2d(widths[0], 3, 3, padding=1)

    def inner_layers(self) -> Iterator[nn.Module]:
        yield from self.mid.children()
        yield from reversed(self.up)


class _Level(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, n: int, upsample: bool) -> None:
        super().__init__()
        widths = [in_channels] + [out_channels] * (n - 1)
        self.block = nn.ModuleList(ResnetBlock(width, out_channels) for width in widths)
        self.upsample = Resample(out_channels, up=True) if upsample else nn.Identity()

    def forward(self, h: Tensor) -> Tensor:
        for block in self.block:
            h = block(h)
        return self.upsample(h)


def read_vqgan(path: Path) -> dict[str, Tensor]:
    """The tensors of a `vqgan.ckpt`, or of the same as safetensors, less those of `LOSSES`.

    Raises:
        InputError: unreadable, or code beside the tensors, which is never run.
    """
    weights = read_tensors(path, WRAPPED)
    return {name: value for name, value in weights.items() if not name.startswith(LOSSES)}


def _image_tokenizer(folder: Path) -> dict[str, Tensor]:
    """The tensors of the `vqgan.ckpt` beside a checkpoint, named as in its folder's weights."""
    for name in VQGAN_FILES:
        if (folder / name).exists():
            weights = read_vqgan(folder / name)
            return {f"{IMAGE_TOKENIZER}{key}": value for key, value in weights.items()}
    raise InputError(
        "there is no image decoder; copy tokenizer/vqgan.ckpt of Meta's Chameleon or of "
        "GAIR/Anole-7b-v0.1 into the folder"
    )


def _heads(name: str, value: Tensor, config: ChameleonConfig) -> int:
    """Number of heads that share a tensor's norms, one a shard `[model_parallel_size, head_dim]`.

    0: it holds none, or one per head.
    """
    queries: int = config.num_attention_heads
    keys: int = config.num_key_value_heads or queries
    heads = queries if ".q_norm." in name else keys if ".k_norm." in name else 0
    return heads if value.ndim == 2 and len(value) == config.model_parallel_size != heads else 0
