"""The judge of drafted tokens: a linear layer on its target's last hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...errors import InputError
from ..llamagen.transformer import LlamaGenTransformer
from .fit import TargetFit


class JudgeHead(ModelMixin, ConfigMixin):
    """Probability that a token which the target has read, but would not say, is acceptable.

    Bachmann et al. 2025, "Judge Decoding": J = σ(w · h + b).

    Args:
        hidden_size: of the target's states.
        threshold: above which a token is taken.
        mmspec_target: fields of the `TargetFit` of its target; None: any of that size.
    """

    @register_to_config
    def __init__(
        self,
        hidden_size: int,
        threshold: float = 0.5,
        mmspec_target: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.threshold = threshold
        self.score = nn.Linear(hidden_size, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """J `[...]` of the target's last hidden states `[..., D]`, behind its last norm."""
        scored = self.score(hidden.to(self.score.weight)).squeeze(-1)
        return scored.float().sigmoid().to(hidden.device)

    def check(self, target: PreTrainedModel | LlamaGenTransformer) -> None:
        """Raise an `InputError` unless it is for `target`."""
        if self.config.mmspec_target is not None:
            TargetFit.read(self.config.mmspec_target).check(target, "judge")
        size, own = TargetFit.of(target).hidden_size, self.config.hidden_size
        if size != own:
            raise InputError(
                f"the judge is for a target with hidden_size {own}, and this one has {size}; train "
                "it on this one"
            )
