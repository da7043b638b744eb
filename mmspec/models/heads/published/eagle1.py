"""EAGLE-1 and EAGLE-2 (Li et al. 2024), and MSD (Lin et al. 2025), which has the same layers.

`fc([e(x_{t+1}); h_t])` goes into one decoder layer that has no first norm. Its output, without a
final norm, stands for the target's hidden state behind x_{t+1}: the target's output layer reads it,
and the next step takes it in. h is the target's last hidden state behind its final norm.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ..columns import Columns, Look
from .attention import Attend
from .experts import ExpertSizes
from .layer import HeadLayer
from .sizes import HeadSizes


class EagleNetwork(nn.Module):
    """The network; see the module.

    Args:
        sizes: see `HeadSizes`.
        vocab_size: V of its embeddings; None: it stores none and takes the target's.
        layers: decoder layers; those behind the first have their first norm.
        bias: `fc` has a bias.
        first_norm: the first layer has its first norm, too (Hydra's "eagle-attn").
        experts: of the layers' mixtures; None: their feed-forward parts are plain.

    Attributes:
        joins_pictures: True if `fc` reads pictures' columns as it does text, False if they do not
            pass it.
    """

    joins_pictures: ClassVar[bool] = True

    def __init__(
        self,
        sizes: HeadSizes,
        vocab_size: int | None,
        layers: int = 1,
        bias: bool = True,
        first_norm: bool = False,
        experts: ExpertSizes | None = None,
    ) -> None:
        super().__init__()
        self.width = width = sizes.hidden_size
        if vocab_size is not None:
            self.embed_tokens = nn.Embedding(vocab_size, width)
        self.fc = nn.Linear(2 * width, width, bias=bias)
        self.layers = nn.ModuleList(
            HeadLayer(sizes, first_norm or n > 0, experts) for n in range(layers)
        )

    def fuse(self, states: Tensor) -> Tensor:
        """Vector `[…, H]` of the target's hidden states: the last one itself."""
        return states

    def look(self, columns: Columns) -> Look:
        """Compress the pictures: here they stay, and are joined as text is."""
        return Look()

    def picture_layers(self) -> list[nn.Module]:
        """Modules whose `k_proj` and `v_proj` read pictures' embeddings as they come."""
        return []

    def joined(self, embedded: Tensor, hidden: Tensor, context: Tensor | None = None) -> Tensor:
        """Inputs `[R, N, H]` of embeddings and the hidden states in front of them.

        Args:
            context: what `look` gave for these columns `[R, N or 1, H]`.
        """
        x: Tensor = self.fc(torch.cat([embedded, hidden], dim=-1))
        return x

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], attend: Attend, skip: int = 0
    ) -> Tensor:
        """Hidden states `[R, N − skip, H]` behind the inputs but the first `skip`."""
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            x = layer(x, turns, attend, number, skip if number == last else 0)
        return x

    def before_output(self, hidden: Tensor) -> Tensor:
        """Inputs of the output layer, of what `forward` gave: the same."""
        return hidden


class MsdNetwork(EagleNetwork):
    """MSD's: a picture's column is its embedding itself, past `fc`."""

    joins_pictures = False

    def picture_layers(self) -> list[nn.Module]:
        return [self.layers[0].get_submodule("self_attn")]

    def look(self, columns: Columns) -> Look:
        return Look(values=columns.embedded)
