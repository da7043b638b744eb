"""Layers that read pictures as they come learn as fast of text."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models.heads.published.eagle1 import MsdNetwork
from .head_batch import HeadBatch


class Tempered(nn.Linear):
    """A linear layer that learns of inputs multiplied by a matrix, `W' M x`.

    Args:
        plain: the layer W.
        factor: M `[in, in]`, symmetric and of full rank.
    """

    factor: Tensor

    def __init__(self, plain: nn.Linear, factor: Tensor) -> None:
        super().__init__(plain.in_features, plain.out_features, plain.bias is not None)
        self.bias = plain.bias
        self.weight = nn.Parameter(torch.linalg.solve(factor, plain.weight.detach().T).T)
        self.register_buffer("factor", factor, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.factor), self.weight, self.bias)

    def plain(self) -> nn.Linear:
        """The layer W."""
        out = nn.Linear(self.in_features, self.out_features, self.bias is not None)
        out.weight, out.bias = nn.Parameter(self.weight.detach() @ self.factor), self.bias
        return out


def temper(network: nn.Module, lessons: Callable[[], HeadBatch]) -> None:
    """Let the keys and values of an MSD head learn of pictures and text alike.

    Pictures come in as they are, without a norm, and in some models far larger than text, in a few
    directions. What a step changes there drowns all else. So these layers learn of inputs that are
    no larger there than a hidden state. The head as it is written has the same layers as before.
    Heads of other kinds stay as they are.

    Args:
        lessons: makes lessons with pictures.
    """
    if not isinstance(network, MsdNetwork):
        return
    example = lessons()
    if example.images is None:
        return
    pictures = example.embedded[example.images.visual(example.mask)].float()
    size = example.features[example.mask].float().square().mean()
    spread, ways = torch.linalg.eigh(pictures.T @ pictures / len(pictures))
    factor = (ways * (1 + spread.clamp_min(0) / size).rsqrt()) @ ways.T
    attention = network.layers[0].self_attn
    for name in ("k_proj", "v_proj"):
        plain = getattr(attention, name)
        setattr(attention, name, Tempered(plain, factor.to(plain.weight)))


def untempered(network: nn.Module) -> None:
    """Make all such layers plain again."""
    for module in [*network.modules()]:
        for name, layer in module.named_children():
            if isinstance(layer, Tempered):
                setattr(module, name, layer.plain())
