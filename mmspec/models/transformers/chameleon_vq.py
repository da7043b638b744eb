"""The decoder of Chameleon's VQ image tokenizer, which transformers' `ChameleonVQVAE` lacks.

Gafni et al. 2022, "Make-A-Scene", section 3.2; published as `tokenizer/vqgan.ckpt` with Meta's
Chameleon and with Anole (GAIR/Anole-7b-v0.1), whose names it has here: the layout of
taming-transformers (`taming/modules/diffusionmodules/model.py`). Its layers are those of LlamaGen's
tokenizer; attention is in the middle alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor, nn
from transformers.models.chameleon import ChameleonVQVAEConfig

from ...errors import InputError
from ..llamagen.vq import AttnBlock, Coder, Resample, ResnetBlock
from ..loading import read_weights
from ..weights import read_checkpoint

# in vqgan.ckpt, of no use but in training: the perceptual loss and the discriminator
IGNORED = "loss."


class ChameleonVQDecoder(Coder):
    """Latents `[B, C, h, w]`, after `post_quant_conv`, to pixels `[B, 3, H, W]` around [-1, 1].

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
    """The tensors of a `vqgan.ckpt`, or of the same as safetensors, less those of `IGNORED`.

    Raises:
        InputError: unreadable, or code beside the tensors, which is never run.
    """
    if path.suffix == ".safetensors":
        weights = read_weights(path.parent, path.name)
    else:
        weights = read_checkpoint(path)
    return {name: value for name, value in weights.items() if not name.startswith(IGNORED)}
