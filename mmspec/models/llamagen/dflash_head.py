"""DFlash's head over a target of pictures: a block of masked cells in one call (Chen et al. 2026).

The network is the published one. What is added is what a picture knows of its cells: rotary
positions say the place in raster order, the row and the column, and a masked cell is told the
tokens above it as far as they are known.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from ...engine.cache import KVCache, StaticCache
from ...errors import InputError
from ..heads.published.base_decoder import cached
from ..heads.published.dflash import DFlashNetwork
from ..heads.published.rotary import HeadRotary
from ..heads.published.sizes import HeadSizes
from .decoder import LlamaGenDecoder
from .spatial_heads import Packed, places_above
from .transformer import LlamaGenTransformer

Turns = tuple[Tensor, Tensor]


class DFlashHead(ModelMixin, ConfigMixin):
    """Head of a few layers, as wide as the target, whose embeddings and output layer it takes.

    Args:
        dim, n_head, n_kv_head, norm_eps, rope_base: as in the target.
        hidden_dim: width of the SwiGLU layers.
        n_layer: layers.
        block: tokens that a call says, K.
        reads: the target's hidden states that it joins: k is what layer k reads, and as many as
            there are layers the last one.
        reach: cells that are read on either side of the one above.
    """

    @register_to_config
    def __init__(
        self,
        dim: int = 1280,
        n_head: int = 20,
        n_kv_head: int | None = None,
        hidden_dim: int = 3584,
        n_layer: int = 2,
        block: int = 16,
        reads: tuple[int, ...] = (2, 18, 34),
        reach: int = 1,
        norm_eps: float = 1e-5,
        rope_base: float = 10000.0,
    ) -> None:
        super().__init__()
        if block < 1:
            raise ValueError(f"block must be 1 or more, not {block}")
        pairs = dim // n_head // 2
        if pairs < 2:
            raise ValueError(f"heads of {dim // n_head} numbers can't tell row and column")
        sizes = HeadSizes(dim, hidden_dim, n_head, n_kv_head or n_head, 2 * pairs, norm_eps)
        # its mask is a vector of its own, no token of the target's
        self.network = DFlashNetwork(sizes, len(reads), dim, 1 + block, -1, n_layer)
        self.mask = nn.Parameter(torch.zeros(dim))
        self.above = nn.Linear((2 * reach + 1) * dim, dim, bias=False)

    def init_weights(self, std: float = 0.02) -> None:
        """Normal weights."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=std)
        nn.init.normal_(self.mask)

    def check(self, target: LlamaGenTransformer) -> None:
        """Raise an `InputError` unless it is for a target of such sizes."""
        width, depth = target.config.dim, target.config.n_layer
        if self.config.dim != width:
            raise InputError(
                f"the DFlash head's dim ({self.config.dim}) is not the target's ({width}); "
                "train a head for this target"
            )
        if not all(0 <= number <= depth for number in self.config.reads):
            raise InputError(
                f"the DFlash head reads the hidden states {list(self.config.reads)}, and the "
                f"target has {depth} layers; train a head for this target"
            )

    @property
    def most(self) -> int:
        """Tokens that a block says, K."""
        return self.network.most

    def turns(self, prefix: int, grid: int) -> Turns:
        """Cosines and sines `[1, T + grid², head_dim]` of a prefix and a square grid."""
        pairs = self.config.dim // self.config.n_head // 2
        side = max(1, pairs // 3)
        rope = {"mrope_section": [pairs - 2 * side, side, side], "mrope_interleaved": True}
        config = {"rope_theta": self.config.rope_base, "rope_parameters": rope}
        cells = torch.cartesian_prod(torch.arange(grid), torch.arange(grid)).T
        axes = torch.stack([torch.arange(prefix + grid**2), *F.pad(cells, (prefix, 0))])
        rotary = HeadRotary(config, 2 * pairs)
        return rotary(axes[:, None].to(self.mask.device), self.mask.dtype)

    def fuse(self, states: Tensor) -> Tensor:
        """The context `[…, D]` of the target's hidden states `[…, A · D]`, each with an even size.

        They grow from layer to layer.
        """
        each = self._even(states.unflatten(-1, (len(self.config.reads), -1)))
        return self.network.fuse(each.flatten(-2))

    def blocks(self, first: Tensor, above: Tensor, known: Tensor) -> Tensor:
        """Inputs `[…, 1 + K, D]` of blocks.

        Args:
            first: the target's inputs `[…, D]` at the last committed token.
            above: its embeddings `[…, K, 2 reach + 1, D]` of the cells above each masked one, from
                left to right.
            known: which of these have a token `[…, K, 2 reach + 1]`.
        """
        told = self._even(above) * known[..., None]
        masked = self.mask + self.above(told.flatten(-2))
        return torch.cat([self._even(first).unsqueeze(-2), masked], dim=-2)

    def _even(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=self.config.norm_eps)


def known_above(first: Tensor, count: int, row: int, reach: int) -> tuple[Tensor, Tensor]:
    """Places above `count` masked cells from `first […]` on, and which of them have a token.

    Both are `[…, K, 2 reach + 1]`. Cells of the block itself have none.

    Args:
        row: positions in a row of the picture.
        reach: cells on either side of the one above.
    """
    cells = first[..., None] + torch.arange(count, device=first.device)
    index, exist = places_above(cells, row, reach)
    return index.clamp_min(0), exist & (index < first[..., None, None])


class DFlashDecoder:
    """The head as it runs at inference, for `DFlashModel`.

    Raises:
        InputError: the head is for a target of another size.
    """

    def __init__(self, head: DFlashHead, target: LlamaGenDecoder) -> None:
        head.check(target.model)
        self.target, self.embeddings = target, target.embeddings
        self.prefix_length, self.dim = target.model.prefix_length, target.dim
        self.reads = tuple(head.config.reads)
        self.head: Any = deepcopy(head).eval().to(target.placement.main)
        for module in [*self.head.modules()]:
            for name, child in module.named_children():
                if isinstance(child, nn.Linear):
                    setattr(module, name, Packed(child))
        self.layers = list(self.head.network.layers)

    @property
    def most(self) -> int:
        """Tokens that a block says."""
        return int(self.head.most)

    def place(self, positions: Tensor) -> None:
        """Nothing: a column stands where the picture's grid has it, padded in front or not."""

    def text_of(self, rows: int) -> None:
        """None: a picture's prompt has no ids."""

    def embed(self, ids: Tensor) -> Tensor:
        """The target's inputs `[…, D]` of token ids `[…]`."""
        return self.target.embed(ids)

    def rotary(self, grid: int) -> Tensor:
        """Cosines and sines side by side `[T + grid², 2 head_dim]`."""
        return torch.cat(self.head.turns(self.prefix_length, grid), dim=-1)[0]

    def cache(self, rows: int, slots: int, room: int | None = None) -> KVCache:
        """An empty cache for `rows` rows of at most `slots` tokens."""
        sizes, like = self.layers[0].self_attn.sizes, self.head.mask
        size = rows, sizes.num_key_value_heads, slots, sizes.head_dim
        return StaticCache(len(self.layers), *size, like.dtype, like.device)

    def fuse(self, states: Tensor) -> Tensor:
        out: Tensor = self.head.fuse(states)
        return out

    def states(self, hidden: Tensor) -> Tensor:
        """Hidden states that its own calls leave behind: the last ones."""
        return hidden

    def masked(self, embedded: Tensor, tokens: Tensor, first: Tensor, row: int) -> Tensor:
        """Inputs `[R, 1 + K, D]` of blocks, see `BlockHeadDecoder.masked`."""
        index, known = known_above(first, self.most, row, self.head.config.reach)
        above = tokens.gather(1, index.clamp_max(tokens.shape[1] - 1).flatten(1)).view_as(index)
        above, known = (x.repeat(len(embedded) // len(x), 1, 1) for x in (above, known))
        out: Tensor = self.head.blocks(embedded, self.embed(above * known), known)
        return out

    def feed(self, features: Tensor, columns: Tensor, cache: KVCache, slots: int | Tensor) -> None:
        """Write what the layers read of features `[R, n, D]`, see `BlockHeadDecoder.feed`.

        `columns` are their positions as `rotary` gave them, `[n, …]` or `[R, n, …]`.
        """
        for layer, pair in enumerate(self.head.network.context(features, _turns(columns))):
            cache.write(layer, torch.stack(pair), slots)

    def forward(
        self,
        x: Tensor,
        rotary: Tensor,
        cache: KVCache,
        slots: int | Tensor,
        length: int,
        mask: Tensor | None,
        head: bool = True,
        use: list[Tensor | bool] | None = None,
    ) -> Tensor:
        """Run N new inputs a row, see `Decoder.forward`."""
        attend = cached(cache, slots, length, mask)
        hidden: Tensor = self.head.network(x, _turns(rotary), attend)
        return self.logits(hidden) if head else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[…, V]` by the target's output layer."""
        return self.target.logits(hidden)


def _turns(rotary: Tensor) -> Turns:
    """Cosines and sines `[R or 1, N, head_dim]` of what `DFlashDecoder.rotary` gave."""
    cos, sin = (rotary if rotary.ndim == 3 else rotary[None]).chunk(2, dim=-1)
    return cos, sin
