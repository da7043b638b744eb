"""Draft heads as they run at inference: between the target's embeddings and its output layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...methods.parts.heads import BRANCHES
from ..llama_layers import LlamaLayers
from ..llamagen.decoder import LlamaGenDecoder
from ..placement import Placement
from ..transformers.causal import CausalDecoder
from ..transformers.prompted import continued
from .base import DraftHead
from .columns import Columns, Images, Look, kept, kept_columns
from .feature import FeatureHead


class HeadDecoder(LlamaGenDecoder):
    """A head's layers over their own cache; its `rotary` are columns of what `place` was told.

    Args:
        network: the head, in evaluation mode, on the target's device and in its dtype.
        target: what it drafts for.

    Raises:
        InputError: the head was made for another target.
    """

    def __init__(self, network: DraftHead, target: CausalDecoder) -> None:
        network.fit.check(target.model)
        self.network, self.target = network, target
        device, blocks = target.embeddings.device, network.blocks()
        self.dim, self.layers = network.dim, LlamaLayers([], 0, 0, 0, 0.0)
        if blocks:
            self._arrange(blocks, Placement.on(device, len(blocks)), network.sizes.norm_eps)
        self.embeddings = target.embeddings
        self._turns = torch.zeros(0)  # [R, slots, head_dim / 2]

    def place(self, positions: Tensor) -> None:
        """Set the positions of the next generation's columns, `[R, slots]`."""
        self.embeddings = self.target.embeddings  # the target may have been moved
        self._turns = self.network.rotary(positions, self.embeddings.dtype)

    def embed(self, ids: Tensor) -> Tensor:
        """The target's inputs, which some models scale."""
        return self.target.embed(ids)

    def rotary(self, grid: int | None = None) -> Tensor:
        """The columns that have a place."""
        return torch.arange(self._turns.shape[1], device=self._turns.device)

    def turns(self, columns: Tensor) -> Tensor:
        """Rotary factors `[R, n, head_dim / 2]` of columns `[n]` or `[R, n]`."""
        if columns.ndim == 1:
            return self._turns[:, columns]
        rows = torch.arange(len(columns), device=columns.device)[:, None]
        return self._turns[rows, columns]

    def forward(self, x: Tensor, rotary: Tensor, *args: Any, **options: Any) -> Tensor:
        """Run new inputs; `rotary` holds columns, and hidden states have the norm's weight."""
        head, options["head"] = options.get("head", True), False
        hidden = super().forward(x, self.turns(rotary), *args, **options) * self.network.norm.weight
        return self.logits(hidden) if head else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """The target's output layer."""
        return self.target.logits(hidden)


class FeatureHeadDecoder(HeadDecoder):
    """A head of EAGLE's kind, for `EagleModel`; arguments as of `HeadDecoder`.

    Attributes:
        look: what it made of the last prompt's pictures.
    """

    network: FeatureHead
    look: Look

    def view(
        self, prefix: Tensor, mask: Tensor, images: Images | None, positions: int
    ) -> tuple[Tensor, Tensor]:
        self._mask, self._images = mask, images
        columns = Columns(prefix, torch.zeros_like(prefix), mask, mask, images)
        self._index, own = kept_columns(kept(columns, self.network.look(columns)))
        self._kept = own
        stand = continued(columns.positions(), positions)
        behind = stand[:, mask.shape[1] :]
        self.place(torch.cat([stand.gather(1, self._index), behind], dim=1))
        return prefix.gather(1, self._index[..., None].expand(-1, -1, self.dim)), own

    def visual(self) -> list[int]:
        """Columns of pictures that it reads of the last prompt, per row."""
        if self._images is None:
            return [0] * len(self._mask)
        found = self._images.visual(self._mask).gather(1, self._index) & self._kept
        return found.sum(1).tolist()

    def branches(self) -> list[dict[str, float]]:
        """Weights of its compressor's branches for the last prompt, those above 0, per row."""
        if self.look.choice is None:
            return []
        return [
            {name: weight for name, weight in zip(BRANCHES, row, strict=True) if weight > 0}
            for row in self.look.choice.tolist()
        ]

    def read(self, prefix: Tensor, before: Tensor) -> Tensor:
        read = self.network.read(Columns(prefix, before, self._mask, self._mask, self._images))
        self.look = read.look
        return read.inputs

    def joined(self, embedded: Tensor, features: Tensor) -> Tensor:
        context = self.look.context
        return self.network.joined(embedded, features, None if context is None else context[:, -1:])
