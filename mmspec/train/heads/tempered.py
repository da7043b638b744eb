"""Layers that read embeddings as they come learn as fast of text as of pictures."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models.heads.published.eagle1 import EagleNetwork
from ...models.heads.published.falcon import FalconNetwork
from .head_batch import HeadBatch

FLOOR = 0.1  # of the mean square of text: directions that have less are not made as large


class Tempered(nn.Linear):
    """A linear layer that learns of inputs whose first n are multiplied by a matrix: `W' [M x; y]`.

    The multiplication is in float32 whatever the layer runs in: what is small beside large inputs
    would be lost in the rounding of bfloat16.

    Args:
        plain: the layer W of inputs [x; y].
        factor: M `[n, n]`, symmetric and of full rank.
    """

    factor: Tensor

    def __init__(self, plain: nn.Linear, factor: Tensor) -> None:
        super().__init__(plain.in_features, plain.out_features, plain.bias is not None)
        self.bias = plain.bias
        self.register_buffer("factor", factor)
        self.weight = nn.Parameter(self._onto(plain.weight.detach(), factor.inverse()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            x = self._onto(x.to(self.factor.dtype), self.factor)
        return F.linear(x, self.weight, self.bias)

    def plain(self) -> nn.Linear:
        """The layer W."""
        out = nn.Linear(self.in_features, self.out_features, self.bias is not None)
        out.weight, out.bias = (
            nn.Parameter(self._onto(self.weight.detach(), self.factor)),
            self.bias,
        )
        return out

    @staticmethod
    def _onto(x: Tensor, factor: Tensor) -> Tensor:
        """Vectors `x [..., in]`, the first n numbers of each multiplied by `factor [n, n]`."""
        first, rest = x.split([len(factor), x.shape[-1] - len(factor)], dim=-1)
        return torch.cat([first @ factor, rest], dim=-1)


def temper(network: nn.Module, lessons: Callable[[], HeadBatch]) -> None:
    """Let a head of EAGLE's kind learn of embeddings, pictures' too, as fast as of hidden states.

    These heads read embeddings as they come, without a norm. A model's pictures are often far
    larger than its hidden states, in a few directions, and its text far smaller: what a step
    changes in the first drowns all else, and the second is hardly heard. So the layers that read
    them learn of inputs of about one size. The head as it is written has the same layers as
    before. Heads of other kinds stay as they are.

    Args:
        lessons: makes lessons, of pictures if there are any.
    """
    if not isinstance(network, EagleNetwork) or isinstance(network, FalconNetwork):
        return  # an LSTM bounds what it reads
    example = lessons()
    size = example.features[example.mask].float().square().mean()
    text, pictures = example.mask, None
    if example.images is not None:
        visual = example.images.visual(example.mask)
        text, pictures = example.mask & ~visual, example.embedded[visual].float()
    words = example.embedded[text].float()
    read = words if pictures is None or not network.joins_pictures else torch.cat([words, pictures])
    floor = FLOOR * words.square().mean() / size
    network.fc = Tempered(network.fc, evened(read, size, floor).to(network.fc.weight))
    if pictures is not None:
        for layers in network.picture_layers():
            for name in ("k_proj", "v_proj"):
                plain = getattr(layers, name)
                setattr(layers, name, Tempered(plain, evened(pictures, size, 1.0).to(plain.weight)))


def evened(x: Tensor, size: Tensor, floor: Tensor | float) -> Tensor:
    """The symmetric matrix that makes inputs `x [N, D]` about as large in every direction.

    Args:
        size: mean square that they get.
        floor: is added to every direction's, as a part of `size`: smaller ones stay smaller.
    """
    spread, ways = torch.linalg.eigh(x.T @ x / len(x))
    return (ways * (floor + spread.clamp_min(0) / size).rsqrt()) @ ways.T


def untempered(network: nn.Module) -> None:
    """Make all such layers plain again."""
    for module in [*network.modules()]:
        for name, layer in module.named_children():
            if isinstance(layer, Tempered):
                setattr(module, name, layer.plain())
