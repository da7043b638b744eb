"""Base of the draft heads: the target that a head fits, the sizes of its layer, its checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch
from diffusers.configuration_utils import ConfigMixin
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...errors import InputError
from ..llamagen.transformer import LlamaGenBlock
from .fit import TargetFit

H = TypeVar("H", bound="DraftHead")


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of a head's layer, as of Llama's: RMS norms, rotary positions, SwiGLU."""

    n_head: int
    n_kv_head: int
    hidden_dim: int
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0

    @classmethod
    def of(cls, model: PreTrainedModel) -> LayerSizes:
        """Sizes of a target's own layers, with heads that share its width."""
        text: Any = model.config.get_text_config()
        heads = text.num_attention_heads
        if text.hidden_size % (2 * heads):
            raise InputError(f"a width of {text.hidden_size} is not even for {heads} heads")
        rope: dict[str, Any] = getattr(text, "rope_parameters", None) or {}
        return cls(
            heads,
            getattr(text, "num_key_value_heads", None) or heads,
            text.intermediate_size,
            float(getattr(text, "rms_norm_eps", cls.norm_eps)),
            float(rope.get("rope_theta", cls.rope_theta)),
        )


class DraftHead(ModelMixin, ConfigMixin):
    """A network that drafts for one frozen target, with its embeddings and its output layer.

    Every class takes `target` and `sizes`, the fields of `TargetFit` and `LayerSizes`, and what is
    its own.
    """

    def __init__(self, target: dict[str, Any], sizes: dict[str, Any]) -> None:
        super().__init__()
        self.fit, self.sizes = TargetFit(**target), LayerSizes(**sizes)
        self.dim = self.fit.hidden_size

    @classmethod
    def for_target(cls: type[H], model: PreTrainedModel, **own: Any) -> H:
        """A head with first weights for `model`, and what else the class takes."""
        fits = {"target": asdict(TargetFit.of(model)), "sizes": asdict(LayerSizes.of(model))}
        head = cls(**fits, **own)
        head.init_weights()
        return head

    def init_weights(self, std: float = 0.02) -> None:
        """Normal weights; a method then makes of the start what suits it."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=std)

    def blocks(self) -> list[LlamaGenBlock]:
        """Its decoder layers, first to last."""
        return [module for module in self.modules() if isinstance(module, LlamaGenBlock)]

    def block(self) -> LlamaGenBlock:
        """A decoder layer of its sizes."""
        sizes = self.sizes
        return LlamaGenBlock(
            self.dim, sizes.n_head, sizes.n_kv_head, sizes.hidden_dim, sizes.norm_eps
        )

    def rms_norm(self) -> nn.RMSNorm:
        """A norm over its width."""
        return nn.RMSNorm(self.dim, self.sizes.norm_eps)

    def rotary(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """Complex factors `[…, head_dim / 2]` of `positions […]`, for weights of `dtype`."""
        real = torch.float64 if dtype == torch.float64 else torch.float32
        width = self.dim // self.sizes.n_head
        steps = torch.arange(0, width, 2, dtype=real, device=positions.device) / width
        angles = positions[..., None].to(real) * self.sizes.rope_theta**-steps
        return torch.polar(torch.ones_like(angles), angles)
