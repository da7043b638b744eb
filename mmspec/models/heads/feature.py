"""Heads that draft the target's next hidden state: one decoder layer over tokens and features.

As `models/llamagen/eagle_head.py` for pictures. Its input at a column is the token's embedding and
the target's hidden state in front of it, its output the hidden state behind the token; the target's
output layer does the rest. What a method makes of pictures is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from ...engine.accept.chain import pick
from ..llamagen.eagle_head import draft_levels
from ..llamagen.transformer import causal_mask
from .base import DraftHead
from .columns import Columns, Look, kept, kept_columns


@dataclass
class Read:
    """Inputs `[R, S', D]` that a head reads of columns, and where they come from.

    Attributes:
        inputs: of the layer.
        mask: `[R, S']`, False where padded.
        positions: `[R, S']`, those of the columns that they stand for.
        index: those columns `[R, S']`.
        look: what it made of the pictures.
    """

    inputs: Tensor
    mask: Tensor
    positions: Tensor
    index: Tensor
    look: Look


class FeatureHead(DraftHead):
    """Base of the heads of EAGLE's kind; see `DraftHead` for the arguments.

    Hidden states are the target's behind its last norm, and so the head ends with a norm too.
    """

    @register_to_config
    def __init__(self, target: dict[str, Any], sizes: dict[str, Any]) -> None:
        super().__init__(target, sizes)
        self.fc = nn.Linear(2 * self.dim, self.dim, bias=False)
        self.layer = self.block()
        self.norm = self.rms_norm()

    def init_weights(self, std: float = 0.02) -> None:
        """Normal weights, and the hidden state that comes in goes out again for a start."""
        super().init_weights(std)
        with torch.no_grad():
            self.fc.weight[:, self.dim :] += torch.eye(self.dim)

    def look(self, columns: Columns) -> Look:
        """Compress the pictures: here they stay, and are joined as text is."""
        return Look()

    def joined(self, embedded: Tensor, before: Tensor, context: Tensor | None = None) -> Tensor:
        """The layer's inputs `[R, n, D]` of tokens' embeddings and the hidden states in front."""
        return self.fc(torch.cat([embedded, before], dim=-1))

    def read(self, columns: Columns) -> Read:
        """The layer's inputs of columns."""
        look = self.look(columns)
        index, mask = kept_columns(kept(columns, look))
        context = None if look.context is None else pick(look.context, index)
        x = self.joined(pick(columns.embedded, index), pick(columns.before, index), context)
        if look.values is not None and columns.images is not None:
            visual = columns.images.visual(columns.mask).gather(1, index)
            x = torch.where(visual[..., None], pick(look.values, index), x)
        return Read(x, mask, columns.positions().gather(1, index), index, look)

    def forward(self, columns: Columns, depth: int = 1) -> tuple[list[Tensor], Read]:
        """Hidden states behind every column that is read, at 1 to `depth` levels of a draft.

        At level k the last k − 1 columns up to each stand on the head's own outputs of the levels
        above, as in a draft; whatever is in front of them stands on the target's hidden states.

        Returns:
            Per level `[R, S', D]`, and what was read.
        """
        read = self.read(columns)
        embedded = pick(columns.embedded, read.index)
        context = None if read.look.context is None else pick(read.look.context, read.index)
        rotary = self.rotary(read.positions, self.fc.weight.dtype)
        mask = causal_mask(read.mask, read.mask.shape[1])

        def inputs(features: Tensor) -> Tensor:
            return self.joined(embedded, features, context)

        return draft_levels(self.layer, read.inputs, inputs, self.norm, rotary, mask, depth), read


class EagleVlmHead(FeatureHead):
    """EAGLE's head under a vision-language model: pictures are read as text is (Li et al. 2024).

    The layer has its first norm, which the published heads leave out (EagleVLM of SpecVLM, Huang et
    al. 2025, section 3.1).
    """


class MsdHead(FeatureHead):
    """MSD's head: text and pictures come in by ways of their own (Lin et al. 2025, section 3.2).

    A text column is `fc([e; h])` as in EAGLE; a picture's column is its projected embedding itself,
    with no hidden state in it.
    """

    def look(self, columns: Columns) -> Look:
        return Look(values=columns.embedded)
