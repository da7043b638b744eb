"""PaliGemma (Beyer et al. 2024) and PaliGemma 2 as transformers has them.

Pictures and prompt read each other both ways, and the answer reads what is in front of it. The
processor says so by `token_type_ids` of 0; without them all is read in one direction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import InputError
from .prompted import refuse
from .vlm import VisualPrompt, VlmDecoder


class PaliGemmaDecoder(VlmDecoder):
    """`PaliGemmaForConditionalGeneration`, over Gemma or Gemma 2."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        head, cap = self.head, getattr(self.config, "final_logit_softcapping", None)
        assert head is not None
        if cap is not None:
            self.head = lambda hidden: cap * torch.tanh(head(hidden) / cap)

    @property
    def body(self) -> PreTrainedModel:
        body: PreTrainedModel = self.model.base_model.language_model
        return body

    def _placed(self, mask: Tensor, given: Tensor | None) -> Tensor:
        return super()._placed(mask, given) + 1  # they are counted from 1

    def prompt(self, ids: Tensor, mask: Tensor, limit: int, **inputs: Any) -> VisualPrompt:
        kinds = inputs.pop("token_type_ids", None)
        prompt = super().prompt(ids, mask, limit, **inputs)
        if kinds is None:
            return prompt
        if bool((kinds.bool() & mask).any()):
            refuse("token_type_ids of an answer in the prompt, which are for training")
        window, width = self.masks.window, int(mask.sum(1).max())
        if window is not None and width > window:
            raise InputError(
                f"a prompt of {width} tokens is longer than the window of "
                f"{type(self.model).__name__}, {window}, and read both ways; shorten it"
            )
        return replace(prompt, both_ways=mask.long() - 1)
