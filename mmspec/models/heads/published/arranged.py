"""Layers of published heads on a processor as `LlamaLayers`: fewer kernels, packed weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...llama_layers import LlamaLayers
from ...repacked import MOST
from ...transformers.rearranged import is_own, is_watched, joined_layer, same_traces, traces_of
from .attention import HeadAttention
from .dflash import DFlashNetwork
from .eagle1 import EagleNetwork
from .eagle3 import Eagle3Network
from .experts import HeadMlp
from .head import PublishedHead
from .layer import FusedLayer, HeadLayer

# the ways of networks of plain layers, the first of which may be EAGLE-3's
IN_A_ROW = EagleNetwork.forward, Eagle3Network.forward, DFlashNetwork.forward


class ArrangedLayers:
    """Keeps the rearranged copy of a head's layers, if there can be one."""

    def __init__(self) -> None:
        self._kept: tuple[LlamaLayers, list[Tensor]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_kept": None}  # a copy rearranges its own weights; packed ones can't be copied

    def of(self, head: PublishedHead) -> LlamaLayers | None:
        """The copy, of the weights as they are now; None: the network runs as it is written."""
        if not can_be_arranged(head):
            self._kept = None
            return None
        blocks: Any = head.network.layers
        traces = traces_of(blocks)
        if self._kept is None or not same_traces(self._kept[1], traces):
            sizes = blocks[0].self_attn.sizes
            shape = sizes.num_attention_heads, sizes.num_key_value_heads, sizes.head_dim
            layers = [joined_layer(block, *shape) for block in blocks]
            self._kept = LlamaLayers(layers, *shape, sizes.rms_norm_eps), traces
        return self._kept[0]


def can_be_arranged(head: PublishedHead) -> bool:
    """True for a network of plain layers in a row, over weights that can be packed.

    The first may be EAGLE-3's. Heads are turned as a whole, and nothing may look into the layers
    (hooks) or take their place.
    """
    network, rotary = head.network, head.rotary
    if rotary is None or getattr(type(network), "forward", None) not in IN_A_ROW:
        return False
    blocks: Any = network.layers
    for block in blocks:
        attention = block.self_attn
        kinds = type(block), type(attention), type(block.mlp)
        if kinds[0] not in (HeadLayer, FusedLayer) or kinds[1:] != (HeadAttention, HeadMlp):
            return False
        sizes = attention.sizes
        if sizes.gated or sizes.zero_centred or 2 * len(rotary.frequencies) != sizes.head_dim:
            return False
    modules = [network, *(module for block in blocks for module in block.modules())]
    if any(map(is_watched, modules)):
        return False
    linears = [module for module in modules if isinstance(module, nn.Linear)]
    return all(map(is_own, linears)) and sum(m.weight.nbytes for m in linears) <= MOST
