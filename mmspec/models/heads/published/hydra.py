"""Hydra (Ankner et al. 2024): Medusa's heads, each in the light of the tokens drafted before it.

Head k reads the target's last hidden state and the embeddings of the k + 1 tokens behind it. With a
prefix layer (Hydra++) it reads what that layer makes of all hidden states so far.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..columns import Columns, Look
from .attention import Attend
from .layer import HeadLayer
from .sizes import HeadSizes


class HydraBlock(nn.Module):
    """`r(x) + SiLU(W x + b)`; r is a linear map where the widths differ."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, width)
        self.res_connection = nn.Linear(inputs, width) if inputs != width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.res_connection(x) + F.silu(self.linear(x))
        return out


class HydraNetwork(nn.Module):
    """The heads; names as in `hydra_lm_head.pt`.

    Args:
        heads: how many.
        blocks: residual blocks of a head.
        width: of the target's hidden states H.
        vocab_size: V.
    """

    def __init__(self, heads: int, blocks: int, width: int, vocab_size: int) -> None:
        super().__init__()
        self.hydra_mlp = nn.ModuleList(
            nn.Sequential(
                HydraBlock((k + 2) * width, width),
                *(HydraBlock(width, width) for _ in range(blocks - 1)),
            )
            for k in range(heads)
        )
        self.hydra_lm_head = nn.ModuleList(nn.Linear(width, vocab_size) for _ in range(heads))

    @property
    def count(self) -> int:
        """Number of heads."""
        return len(self.hydra_mlp)

    def forward(self, hidden: Tensor, path: Tensor) -> Tensor:
        """Logits `[…, V]` of the token behind a path of embeddings `[…, k + 1, H]`.

        Args:
            hidden: the target's, in front of the path, `[…, H]`.
            path: from the last committed token on; its length chooses the head.
        """
        head = path.shape[-2] - 1
        x = torch.cat([hidden, path.flatten(-2)], dim=-1)
        out: Tensor = self.hydra_lm_head[head](self.hydra_mlp[head](x))
        return out


class PrefixLayer(nn.Module):
    """A decoder layer and a norm behind it."""

    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        self.layers = nn.ModuleList([HeadLayer(sizes)])
        self.norm = sizes.norm(sizes.hidden_size)


class PrefixHydraNetwork(HydraNetwork):
    """Hydra's heads of arch "prefix-mlp"; the name of the layer is spelled as in the files.

    Args:
        heads, blocks, vocab_size: see `HydraNetwork`.
        sizes: of the prefix layer.
    """

    def __init__(self, heads: int, blocks: int, vocab_size: int, sizes: HeadSizes) -> None:
        super().__init__(heads, blocks, sizes.hidden_size, vocab_size)
        self.width = sizes.hidden_size
        self.prefix_embeding_layer = PrefixLayer(sizes)

    @property
    def layers(self) -> nn.ModuleList:
        """Layers of attention."""
        return self.prefix_embeding_layer.layers

    def fuse(self, states: Tensor) -> Tensor:
        """Vector `[…, H]` of the target's hidden states: the last one itself."""
        return states

    def look(self, columns: Columns) -> Look:
        """Compress the pictures: here they stay."""
        return Look()

    def joined(self, embedded: Tensor, hidden: Tensor, context: Tensor | None = None) -> Tensor:
        """Inputs `[R, N, H]` of the prefix layer: the hidden states alone."""
        return hidden

    def prefixed(self, x: Tensor, turns: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Hidden states `[R, N, H]` that the heads read, of the target's `[R, N, H]`."""
        layer = self.prefix_embeding_layer
        out: Tensor = layer.norm(layer.layers[0](x, turns, attend, 0))
        return out
