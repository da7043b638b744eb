"""Gemma 3 (Google 2025) as transformers has it: the tokens of a picture read each other both ways.

The processor says which they are by `token_type_ids` of 1; without them all is read in one
direction. In layers with a window a token of a picture reads no further back than any other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from .vlm import VisualPrompt, VlmDecoder


class Gemma3Decoder(VlmDecoder):
    """`Gemma3ForConditionalGeneration`."""

    def prompt(self, ids: Tensor, mask: Tensor, limit: int, **inputs: Any) -> VisualPrompt:
        kinds = inputs.pop("token_type_ids", None)
        prompt = super().prompt(ids, mask, limit, **inputs)
        if kinds is None:
            return prompt
        pictures = (kinds == 1) & mask
        begins = pictures & ~F.pad(pictures, (1, 0))[:, :-1]
        groups = (begins.long().cumsum(1) - 1).masked_fill(~pictures, -1)
        return replace(prompt, both_ways=groups) if bool(pictures.any()) else prompt
