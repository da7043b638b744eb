"""Sparse experts on rounded weights, each as the linear layers of a model are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..llama_layers import Linear
from ..repacked import trace
from ..rounded import linear


def is_experts(module: nn.Module) -> bool:
    """True for the experts of a layer as transformers has them: `[experts, …]` in a tensor."""
    weight = getattr(module, "down_proj", None)
    known = hasattr(type(module), "_apply_gate") and hasattr(module, "is_transposed")
    return known and isinstance(weight, nn.Parameter) and weight.ndim == 3


class RoundedExperts:
    """Experts of a layer on rounded copies of their weights, made anew where a weight has changed.

    Args:
        experts: the layer's, see `is_experts`; its router is left as it is.
    """

    def __init__(self, experts: nn.Module) -> None:
        self.experts: Any = experts
        self._kept: tuple[str, Tensor, list[list[Linear]]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"experts": self.experts, "_kept": None}  # packed weights can't be copied

    def of(self, weights: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Function for the place of their forward pass, on weights so rounded, see `linear`.

        Raises:
            InputError: they can't be rounded.
        """
        experts = self.experts
        first = experts.gate_up_proj if experts.has_gate else experts.up_proj
        own = [first.detach(), experts.down_proj.detach()]
        seen = trace(own)
        if self._kept is None or self._kept[0] != weights or not torch.equal(self._kept[1], seen):
            turned = [w.mT if experts.is_transposed else w for w in own]  # [experts, out, in]
            maps = [[linear(one.contiguous(), weights) for one in each] for each in turned]
            self._kept = weights, seen, maps
        return self._forward

    def _forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Outputs `[T, D]` of hidden states, see `batched_mm_experts_forward` of transformers.

        Args:
            hidden_states: `[T, D]`.
            top_k_index: experts of every token `[T, K]`; a number that none has adds nothing.
            top_k_weights: factors of their outputs `[T, K]`.
        """
        assert self._kept is not None
        experts, (up, down) = self.experts, self._kept[2]
        out = torch.zeros_like(hidden_states)
        for number in top_k_index.unique().tolist():
            if number >= len(down):
                continue
            token, place = (top_k_index == number).nonzero(as_tuple=True)
            x = up[number](hidden_states[token])
            if experts.has_bias:
                bias = experts.gate_up_proj_bias if experts.has_gate else experts.up_proj_bias
                x = x + bias[number]
            x = experts._apply_gate(x) if experts.has_gate else experts.act_fn(x)
            x = down[number](x)
            if experts.has_bias:
                x = x + experts.down_proj_bias[number]
            if getattr(experts, "has_post_expert_norm", False):
                x = experts.post_expert_norm(x)
            out.index_add_(0, token, (x * top_k_weights[token, place, None]).to(out.dtype))
        return out
