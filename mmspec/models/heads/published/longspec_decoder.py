"""A LongSpec head as it runs at inference, for `LongSpecModel`."""

from __future__ import annotations

from torch import Tensor

from ....engine.cache import StaticCache
from ....errors import InputError
from ...transformers.causal import CausalDecoder
from .base_decoder import PublishedDecoder
from .head import PublishedHead
from .last_entries import LastEntries
from .longspec import LongSpecNetwork


class PublishedLongSpecDecoder(PublishedDecoder):
    """A LongSpec head over a target's last layer; it keeps nothing of hidden states.

    Its positions are the target's own, for its queries meet the target's keys.

    Attributes:
        last: view of the keys and values that it attends to.

    Raises:
        InputError: the target's last layer has none, or ones of other heads.
    """

    network: LongSpecNetwork

    def __init__(self, head: PublishedHead, target: CausalDecoder) -> None:
        super().__init__(head, target)
        self.dim = 0
        self.last = LastEntries(target)
        fits(self.network, self.last)
        head.rotary = self.last.rotary

    def fuse(self, states: Tensor) -> Tensor:
        return states[..., :0]

    def ring(self, rows: int, slots: int) -> StaticCache:
        """An empty cache of own keys and values for so many columns a row."""
        sizes, weight = self.network.sizes, next(self.network.parameters())
        kv, dim = sizes.num_key_value_heads, sizes.head_dim
        return StaticCache(1, rows, kv, slots, dim, weight.dtype, weight.device)

    def entries(self, x: Tensor, columns: Tensor) -> Tensor:
        """Own keys and values of embeddings at columns, see `LongSpecNetwork.entries`."""
        return self.network.entries(x, self.turns(columns))


def fits(network: LongSpecNetwork, last: LastEntries) -> None:
    """Raise an `InputError` unless the network's queries can meet the target's keys."""
    heads, dim = network.sizes.num_attention_heads, network.sizes.head_dim
    if dim != last.head_dim or heads % last.kv_heads:
        raise InputError(
            f"the draft head has {heads} heads of {dim} numbers, and the target stores keys of "
            f"{last.kv_heads} heads of {last.head_dim}; load the head that was trained for this "
            "target"
        )
