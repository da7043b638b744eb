"""ViSpec (Kang et al. 2025): EAGLE-1's layers; a picture is a vector or two, and one for all text.

Learned queries read a picture's embeddings by one cross-attention. All outputs but the last stand
in the picture's last columns, past `fc`. The last is g: text joins it to its hidden state,
`fc([e; img_fc([h; g])])`, g zero before the first picture.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..columns import Columns, Look
from .eagle1 import EagleNetwork
from .sizes import HeadSizes


class ImageAdapter(nn.Module):
    """`queries` learned queries over a picture's embeddings, by heads as the layer has them."""

    def __init__(self, sizes: HeadSizes, queries: int, bias: bool) -> None:
        super().__init__()
        heads, dim, width = sizes.num_attention_heads, sizes.head_dim, sizes.hidden_size
        self.q = nn.Parameter(torch.empty(queries, heads, dim))
        self.k_proj = nn.Linear(width, heads * dim, bias=bias)
        self.v_proj = nn.Linear(width, heads * dim, bias=bias)
        self.o_proj = nn.Linear(heads * dim, width, bias=False)

    def forward(self, picture: Tensor, real: Tensor) -> Tensor:
        """Outputs `[M, queries, H]` of pictures `[M, P, H]`; `real [M, P]`: not behind the end."""
        _, heads, dim = self.q.shape
        k, v = (
            layer(picture).unflatten(-1, (heads, dim)).transpose(1, 2)
            for layer in (self.k_proj, self.v_proj)
        )
        q = self.q.transpose(0, 1).expand(len(picture), -1, -1, -1)
        out = F.scaled_dot_product_attention(q, k, v, real[:, None, None])
        joined: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return joined


class ViSpecNetwork(EagleNetwork):
    """The network; arguments as of `EagleNetwork`.

    Args:
        queries: of the adapter, from the shape of `imadpt.q`.
        adapter_bias: the adapter's keys and values have biases.
        join_bias: `img_fc` has one.
    """

    joins_pictures = False

    def __init__(
        self,
        sizes: HeadSizes,
        vocab_size: int | None,
        layers: int = 1,
        bias: bool = True,
        queries: int = 2,
        adapter_bias: bool = False,
        join_bias: bool = True,
    ) -> None:
        super().__init__(sizes, vocab_size, layers, bias)
        self.imadpt = ImageAdapter(sizes, queries, adapter_bias)
        self.img_fc = nn.Linear(2 * sizes.hidden_size, sizes.hidden_size, bias=join_bias)

    def picture_layers(self) -> list[nn.Module]:
        return [self.imadpt]

    def look(self, columns: Columns) -> Look:
        images, mask, embedded = columns.images, columns.mask, columns.embedded
        if images is None:
            return Look(context=embedded.new_zeros(len(mask), mask.shape[1] + 1, embedded.shape[2]))
        seen = self.imadpt(images.picked(embedded), images.real())
        values, keep = images.at_end(seen[:, :-1], seen.shape[1] - 1)
        with_none = torch.cat([torch.zeros_like(seen[:1, -1]), seen[:, -1]])
        context = F.embedding(images.latest(mask) + 1, with_none)
        return Look(images.put(keep, mask), images.put(values, torch.zeros_like(embedded)), context)

    def joined(self, embedded: Tensor, hidden: Tensor, context: Tensor | None = None) -> Tensor:
        assert context is not None
        seen = self.img_fc(torch.cat([hidden, context.expand_as(hidden)], dim=-1))
        return super().joined(embedded, seen)
