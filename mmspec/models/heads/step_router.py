"""The router of steps: a small network on the states that a draft model drew a step from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...errors import InputError
from .fit import TargetFit


class StepRouter(ModelMixin, ConfigMixin):
    """Guess at a drafted step: that the target's would be better, or that it is good by itself.

    A layer reads each state, and another what is largest, what is usual and what is last of its
    findings. Nobody has to read the step for it: the states are those that its tokens were drawn
    from. (Maheswaran et al. 2025 fine-tune a reward model of 1.5B parameters, which reads it.)

    Args:
        hidden_size: of the draft model's states.
        width: of the findings.
        dropout: of the findings, in training.
        mmspec_target, mmspec_drafter: fields of the `TargetFit` of its target and of its draft
            model; None: any of that size.
    """

    @register_to_config
    def __init__(
        self,
        hidden_size: int,
        width: int = 128,
        dropout: float = 0.2,
        mmspec_target: Mapping[str, Any] | None = None,
        mmspec_drafter: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size)
        self.find = nn.Linear(hidden_size, width)
        self.drop = nn.Dropout(dropout)
        self.join = nn.Linear(3 * width, width)
        self.score = nn.Linear(width, 1)

    def logits(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Logits `[B]` of guesses at steps of `lengths [B]`, of states `[B, N, D]`."""
        nodes = torch.arange(states.shape[1], device=states.device)
        real = (nodes < lengths[:, None])[..., None]
        found = self.drop(torch.relu(self.find(self.norm(states.to(self.find.weight)))))
        found = found * real  # not below 0: filling is never the largest
        last = (lengths - 1).clamp_min(0)[:, None, None].expand(-1, 1, found.shape[-1])
        usual = found.sum(1) / lengths.clamp_min(1)[:, None].to(found)
        pooled = torch.cat([found.amax(1), usual, found.gather(1, last)[:, 0]], dim=-1)
        return self.score(torch.relu(self.join(pooled)))[:, 0]

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Guesses `[B]` in (0, 1), float64, see `logits`."""
        return self.logits(states, lengths).double().sigmoid()

    def check(self, target: PreTrainedModel, drafter: PreTrainedModel) -> None:
        """Raise an `InputError` unless it is for a `target` and its `drafter`."""
        of_target, of_drafter = self.config.mmspec_target, self.config.mmspec_drafter
        if of_target is not None:
            TargetFit.read(of_target).check(target, "router")
        if of_drafter is not None:
            TargetFit.read(of_drafter).check(drafter, "router", "draft model")
        size, own = drafter.config.get_text_config().hidden_size, self.config.hidden_size
        if size != own:
            raise InputError(
                f"the router is for a draft model with hidden_size {own}, and this one has {size}; "
                "train it on this one"
            )
