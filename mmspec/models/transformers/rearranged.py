"""Llama's kind of transformers models on a processor: their layers as `LlamaLayers`.

A call then takes fewer kernels, and its linear layers are packed (see `RowLinear`) or
rounded. Weights stay the model's own; the copies are made anew where a weight has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...engine.cache import KVCache
from ..counted_tokens import ALL, CountedTokens
from ..llama_layers import LlamaLayer, LlamaLayers
from ..repacked import MOST, trace
from ..rounded import folded, linear

if TYPE_CHECKING:
    from .causal import CausalDecoder

# transformers' norms compute in float32 whatever the type is: in others that would be a difference
TYPES = (torch.float32,)
FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")  # as their classes are called
CAPTURING = "transformers.utils.output_capturing"  # where hooks are from that hand out states
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


@dataclass
class Rearranged:
    """A model's body, rearranged.

    Attributes:
        layers: its layers.
        rotary: cosines and sines of inputs and positions `[R or 1, N]`, as the model has them.
        norm: the last one.
        traces: of the weights that the copies are of, layer by layer.
        weights: how the copies are rounded.
    """

    layers: LlamaLayers
    rotary: nn.Module
    norm: nn.Module
    traces: list[Tensor]
    weights: str | None

    def __call__(
        self,
        x: Tensor,
        positions: Tensor,
        cache: KVCache,
        slots: int | Tensor,
        length: int,
        mask: Tensor | None,
        use: list[Tensor | bool] | None = None,
        read: dict[int, Tensor] | None = None,
        some: CountedTokens = ALL,
    ) -> Tensor:
        """Hidden states `[R, N, D]` behind the last norm, see `LlamaLayers`."""
        turns = factors(*self.rotary(x, positions))
        if len(turns) == 1:
            turns = turns[0]
        out = self.layers(x, turns, cache, slots, length, mask, use, read, some)
        return self.layers.norm(out, self.norm.get_parameter("weight"))


class Rearranging:
    """Keeps the rearranged copy of a decoder's body, if there can be one."""

    def __init__(self) -> None:
        self._kept: Rearranged | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_kept": None}  # a copy rearranges its own weights; packed ones can't be copied

    def of(self, decoder: CausalDecoder) -> Rearranged | None:
        """The copy, of the weights as they are now; None: the body runs as transformers has it."""
        if not is_plain(decoder):
            self._kept = None
            return None
        blocks: Any = decoder.blocks()
        traces = traces_of(blocks)
        kept = self._kept
        if kept is None or kept.weights != decoder.weights or not same_traces(kept.traces, traces):
            kept = self._kept = _rearrange(decoder, blocks, traces)
        return kept


def side_by_side(x: Tensor) -> Tensor:
    """Keys `[…, head_dim]` as `LlamaLayers` has them: both numbers of a rotary pair together."""
    return x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


def halved(x: Tensor) -> Tensor:
    """Keys `[…, head_dim]` as transformers has them: the pairs' first numbers in front."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def factors(cos: Tensor, sin: Tensor) -> Tensor:
    """Complex factors `[…, head_dim / 2]` of cosines and sines `[…, head_dim]`, both halves equal.

    `LlamaLayers` turns pairs by them.
    """
    half = cos.shape[-1] // 2
    return torch.complex(cos[..., :half], sin[..., :half])


def is_plain(decoder: CausalDecoder) -> bool:
    """True for layers of a known family as transformers has them, over packable weights.

    Nothing may look into them or take their place: no hooks, adapters, or layers of other classes.
    """
    body = decoder.body
    family = type(body).__name__.removesuffix("Model").removesuffix("Text")
    if family not in FAMILIES or decoder.masks.window is not None or decoder.masks.kinds:
        return False
    home = f"transformers.models.{family.lower()}.modeling_{family.lower()}"
    blocks = getattr(body, "layers", ())
    bodies = (body, body.rotary_emb, body.norm, *blocks)
    if any(type(module).__module__ != home for module in bodies):
        return False
    if any(is_watched(module) for module in (decoder.model, *body.modules())):
        return False
    for block in blocks:
        attention, mlp = block.self_attn, block.mlp
        parts = ((block, _LAYER), (attention, _ATTENTION), (mlp, _MLP))
        norms = {"q_norm", "k_norm"}
        if any({*dict(module.named_children())} - norms != names for module, names in parts):
            return False
        linears = [m for m in block.modules() if isinstance(m, nn.Linear)]
        if len(linears) != 7 or not all(map(is_own, linears)):
            return False
        if any(m.bias is not None for m in (attention.o_proj, mlp.gate_proj, mlp.down_proj)):
            return False
    size = sum(p.nbytes for block in blocks for p in block.parameters())
    return len(blocks) > 0 and (decoder.weights is not None or size <= MOST)


def is_watched(module: nn.Module) -> bool:
    """True if something looks into a module's calls, or takes their place.

    Hooks by which transformers hands out hidden states do not count: the first call that asks for
    some leaves them behind for good, and they do nothing in calls that ask for none.
    """
    hooks = *module._forward_hooks.values(), *module._forward_pre_hooks.values()
    theirs = any(getattr(hook, "__module__", None) != CAPTURING for hook in hooks)
    return theirs or "forward" in vars(module) or hasattr(module, "_hf_hook")


def is_own(linear: nn.Linear) -> bool:
    """True for a linear layer as torch has it, of full precision, on the processor."""
    weight = linear._parameters.get("weight")
    plain = type(linear) is nn.Linear and type(weight) is nn.Parameter
    return plain and linear.weight.dtype in TYPES and linear.weight.device.type == "cpu"


def traces_of(blocks: Iterable[nn.Module]) -> list[Tensor]:
    """Traces of the weights of each block, see `trace`."""
    return [trace(parameter.detach() for parameter in block.parameters()) for block in blocks]


def same_traces(mine: list[Tensor], theirs: list[Tensor]) -> bool:
    """True if no weight has changed between what `traces_of` gave."""
    pairs = zip(mine, theirs, strict=False)
    return len(mine) == len(theirs) and all(torch.equal(one, other) for one, other in pairs)


def _rearrange(decoder: CausalDecoder, blocks: Any, traces: list[Tensor]) -> Rearranged:
    config, body = decoder.config, decoder.body
    heads, first = config.num_attention_heads, blocks[0].self_attn
    kv_heads, head_dim = config.num_key_value_heads or heads, first.head_dim
    act: Callable[[Tensor], Tensor] = blocks[0].mlp.act_fn
    arranged = [joined_layer(block, heads, kv_heads, head_dim, decoder.weights) for block in blocks]
    eps = config.rms_norm_eps
    layers = LlamaLayers(arranged, heads, kv_heads, head_dim, eps, act=act)
    return Rearranged(layers, body.rotary_emb, body.norm, traces, decoder.weights)


def joined_layer(
    block: Any, heads: int, kv_heads: int, head_dim: int, weights: str | None = None
) -> LlamaLayer:
    """The maps of a layer with the modules of transformers' Llama, first norm or not.

    With a `hidden_norm` it is EAGLE-3's first layer, whose attention reads two vectors side by
    side.

    Args:
        block: the layer.
        heads, kv_heads, head_dim: of its attention.
        weights: how the copies are rounded.
    """
    attention, mlp = block.self_attn, block.mlp

    def paired(x: Tensor) -> Tensor:
        """Rows `[heads · head_dim, …]`, both numbers of a rotary pair side by side."""
        heads = x.unflatten(0, (-1, head_dim)).movedim(1, -1)
        return side_by_side(heads).movedim(-1, 1).flatten(0, 1)

    def joined(names: Iterable[str], of: str) -> Tensor:
        q, k, v = (getattr(getattr(attention, name), of).detach() for name in names)
        return torch.cat([paired(q), paired(k), v])

    names = ("q_proj", "k_proj", "v_proj")
    bias = None if attention.q_proj.bias is None else joined(names, "bias")
    of_heads = None
    if hasattr(attention, "q_norm"):
        q, k = (paired(norm.weight.detach()) for norm in (attention.q_norm, attention.k_norm))
        of_heads = torch.cat([q.expand(heads, -1), k.expand(kv_heads, -1)])
    both = torch.cat([mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()])
    second = block.post_attention_layernorm.weight.detach()
    norm = getattr(block, "input_layernorm", None)
    first = torch.ones_like(second) if norm is None else norm.weight.detach()
    residual = None
    if (beside := getattr(block, "hidden_norm", None)) is not None:
        own = beside.weight.detach()
        first, residual = torch.cat([first, own]), own if block.norm_before_residual else None
    qkv, gate_up, norms = folded(joined(names, "weight"), both, (first, second), weights)
    return LlamaLayer(
        linear(qkv, weights),
        linear(attention.o_proj.weight, weights),
        linear(gate_up, weights),
        linear(mlp.down_proj.weight, weights),
        norms,
        bias,
        of_heads,
        norm is not None,
        1 if beside is None else 2,
        residual,
    )
