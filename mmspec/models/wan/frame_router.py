"""Router of video blocks: guesses how near a drafted frame is to the target's own.

A reward says how good a frame is; a router only has to know which drafts the target would have made
otherwise. That can be learned from both models alone: no labels, no judge.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

DECIBELS = 10.0  # of one unit of the network's output
USUAL = 25.0  # decibels, where training starts
SHOWN = 3  # pictures that a guess sees: the frame, the one before it, the last before the block


class FrameRouter(ModelMixin, ConfigMixin):
    """Expected PSNR of a drafted block's frames against the target's own, in decibels.

    Trained for it, it is the logit that the target's block would be better, told frame by frame.

    Each frame is seen beside the one before it and the last one before the block, in the light of
    the prompt, of the block's number and of the frame's place in it.

    Args:
        vocab_size: words of the prompts' tokenizer; id 0 is padding.
        text_len: tokens of a prompt at most.
        text_dim: width of what is made of the prompt.
        patch_size: pixels of a side of the patches that are folded into channels.
        widths: channels of each stage; every further one halves the resolution.
        blocks: of a clip that are told apart; later ones count as the last.
        frames: of a block that are told apart, as well.
        dropout: of what is read and of what is seen, in training.
        unit: decibels, or logits, of one unit of the network's output.
        usual: where training starts, in these.
    """

    @register_to_config
    def __init__(
        self,
        vocab_size: int = 64,
        text_len: int = 16,
        text_dim: int = 64,
        patch_size: int = 4,
        widths: tuple[int, ...] = (32, 64, 128),
        blocks: int = 12,
        frames: int = 12,
        dropout: float = 0.0,
        unit: float = DECIBELS,
        usual: float = USUAL,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab_size, text_dim)
        self.positions = nn.Parameter(0.02 * torch.randn(text_len, text_dim))
        self.reader = nn.TransformerEncoderLayer(
            text_dim, 2, 2 * text_dim, dropout=dropout, batch_first=True, norm_first=True
        )
        self.numbers = nn.Parameter(0.02 * torch.randn(blocks, text_dim))
        self.places = nn.Parameter(0.02 * torch.randn(frames, text_dim))
        before = [SHOWN * 3 * patch_size**2, *widths[:-1]]
        self.stages = nn.ModuleList(
            RouterStage(inner, width, text_dim, halve=n > 0)
            for n, (inner, width) in enumerate(zip(before, widths, strict=True))
        )
        out = nn.Linear(widths[-1], 1)
        nn.init.constant_(out.bias, usual / unit)
        self.head = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(2 * widths[-1], widths[-1]), nn.SiLU(), out
        )

    def read(self, ids: Tensor) -> Tensor:
        """Vectors `[M, text_dim]` of prompts `[M, T]`, zero where padded."""
        told = ids != 0
        x = self.words(ids) + self.positions[: ids.shape[1]]
        x = self.reader(x, src_key_padding_mask=~told)
        weight = told[..., None].to(x)
        return (x * weight).sum(1) / weight.sum(1).clamp_min(1)

    def forward(self, frames: Tensor, before: Tensor, prompts: Tensor, number: int) -> Tensor:
        """Decibels `[B, N]` of the frames `[B, N, 3, H, W]` of a block, in [-1, 1].

        Args:
            before: the last frame before the block `[B, 3, H, W]`; of a clip's first block zeros.
            prompts: of each clip what `read` made of its prompt, `[B, text_dim]`.
            number: of the block in its clip, from 0.
        """
        count, last = frames.shape[1], before[:, None]
        prior = torch.cat([last, frames[:, :-1]], dim=1)
        x = torch.cat([frames, prior, last.expand_as(frames)], dim=2).flatten(0, 1)
        place = torch.arange(count, device=frames.device).clamp_max(len(self.places) - 1)
        when = self.numbers[min(number, len(self.numbers) - 1)] + self.places[place]
        told = (prompts[:, None] + when).flatten(0, 1)
        x = F.pixel_unshuffle(x, self.config.patch_size)
        for stage in self.stages:
            x = stage(x, told)
        pooled = torch.cat([x.mean((2, 3)), x.amax((2, 3))], dim=-1)
        return self.config.unit * self.head(pooled).view(-1, count)


class RouterStage(nn.Module):
    """A convolution to a new width and a residual one, scaled and shifted by the prompt.

    The first one halves the resolution or, over folded patches, is of single places.
    """

    def __init__(self, inner: int, width: int, text_dim: int, halve: bool) -> None:
        super().__init__()
        side, stride = (3, 2) if halve else (1, 1)
        self.enter = nn.Conv2d(inner, width, side, stride, padding=side // 2)
        self.norm = nn.GroupNorm(8, width)
        self.told = nn.Linear(text_dim, 2 * width)
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor, prompts: Tensor) -> Tensor:
        x = self.enter(x)
        scale, shift = self.told(prompts)[:, :, None, None].chunk(2, dim=1)
        return x + self.conv(F.silu(self.norm(x) * (1 + scale) + shift))
