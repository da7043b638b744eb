"""Published heads as they run at inference, by the head's network."""

from __future__ import annotations

import torch
from torch import Tensor

from ....engine.cache import KVCache
from ...transformers.causal import CausalDecoder
from ...transformers.prompted import continued
from ...transformers.rearranged import side_by_side
from ..columns import Images, positions
from .base_decoder import PublishedDecoder
from .dflash import DFlashNetwork
from .eagle1 import EagleNetwork
from .eagle3 import Eagle3Network
from .eagle_decoder import (
    PublishedEagleDecoder,
    PublishedFalconDecoder,
    PublishedFlashDecoder,
    PublishedPEagleDecoder,
    PublishedPrefixDecoder,
)
from .falcon import FalconNetwork
from .flash import FlashNetwork
from .head import PublishedHead
from .hydra import HydraNetwork, PrefixHydraNetwork
from .longspec import LongSpecNetwork
from .longspec_decoder import PublishedLongSpecDecoder
from .medusa import MedusaNetwork


class PublishedDFlashDecoder(PublishedDecoder):
    """A DFlash head, for `DFlashModel`."""

    network: DFlashNetwork

    def __init__(self, head: PublishedHead, target: CausalDecoder) -> None:
        super().__init__(head, target)
        self.dim = self.layers[0].self_attn.sizes.hidden_size

    @property
    def most(self) -> int:
        """Tokens that a block says."""
        return self.network.most

    def fuse(self, states: Tensor) -> Tensor:
        return self.network.fuse(states)

    def masked(self, embedded: Tensor, tokens: Tensor, first: Tensor, row: int) -> Tensor:
        """Inputs of blocks `[R, 1 + K, H]` that begin with tokens embedded as `[R, H]`."""
        size = self.network.block_size - 1
        ids = torch.full((*embedded.shape[:-1], size), self.network.mask_token_id)
        masks = self.embed(ids.to(embedded.device))
        return torch.cat([embedded.unsqueeze(-2), masks], dim=-2)

    def feed(self, features: Tensor, columns: Tensor, cache: KVCache, slots: int | Tensor) -> None:
        """Write what the layers read of features `[R, n, H]` at `columns [n]` or `[R, n]`."""
        context = self.network.context(features, self.turns(columns))
        for layer, (keys, values) in enumerate(context):
            if self._arranged is not None:
                keys = side_by_side(keys)
            cache.write(layer, torch.stack([keys, values]), slots)

    def behind(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.network.norm(hidden)
        return out


class PublishedPathDecoder(PublishedDecoder):
    """Medusa's or Hydra's heads, for `HydraModel`: they have no cache."""

    network: MedusaNetwork | HydraNetwork

    @property
    def most(self) -> int:
        """Number of heads."""
        return self.network.count

    def view(
        self, prefix: Tensor, mask: Tensor, images: Images | None, more: int
    ) -> tuple[Tensor, Tensor]:
        """Prefix and mask that it reads, see `TokenHeadDecoder`: the target's own."""
        self.place(continued(positions(mask), more))
        return prefix, mask

    def ahead(self, before: Tensor, path: Tensor) -> Tensor:
        """Logits `[…, V]` behind a path of embeddings `[…, i, H]`, the last head that reads it.

        Args:
            before: the target's hidden states in front of the path `[…, H]`.
            path: from the last committed token on.
        """
        if isinstance(self.network, HydraNetwork):
            return self.spread(self.network(before, path))
        return self.spread(self.network.head(path.shape[-2] - 1)(before))

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden  # they are logits already


def published_decoder(head: PublishedHead, target: CausalDecoder) -> PublishedDecoder:
    """The head as it runs at inference, for any number of generations.

    Raises:
        InputError: it was made for another target.
    """
    network = head.network
    if isinstance(network, FalconNetwork):
        return PublishedFalconDecoder(head, target)
    if isinstance(network, FlashNetwork):
        return PublishedFlashDecoder(head, target)
    if isinstance(network, Eagle3Network) and network.mask_token_id is not None:
        return PublishedPEagleDecoder(head, target)
    if isinstance(network, PrefixHydraNetwork):
        return PublishedPrefixDecoder(head, target)
    if isinstance(network, EagleNetwork | Eagle3Network):
        return PublishedEagleDecoder(head, target)
    if isinstance(network, DFlashNetwork):
        return PublishedDFlashDecoder(head, target)
    if isinstance(network, LongSpecNetwork):
        return PublishedLongSpecDecoder(head, target)
    return PublishedPathDecoder(head, target)
