"""Batches that draft heads learn from: texts, pictures in some, and what the frozen target says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models.heads.columns import Columns, Images

if TYPE_CHECKING:
    from .last_layer import LastLayer

AT_ONCE = 256  # laws over whole vocabularies


@dataclass
class HeadBatch:
    """Texts, and what the frozen target says of them.

    Attributes:
        embedded: its inputs `[R, S, D]`, prompt and answer.
        features: its last hidden states at them, behind the last norm `[R, S, D]`.
        states: the hidden states that the head reads `[R, S, A · D]`, see `PublishedHead.reads`; of
            most heads the features.
        mask: `[R, S]`, False where padded.
        answer: `[R, S]`, columns of what it has answered: those are drafted.
        images: where the pictures are.
        output: its output layer, logits `[…, V]` of hidden states `[…, D]`.
        embed: its inputs `[…, D]` of tokens.
        tokens: ids `[R, S]`; of an answer's columns at least.
        layer: the output layer itself, for heads that draft some tokens alone.
        kept: what was worked out of it once.
        groups: of columns that the target reads both ways `[R, S]`, see `Setting.both_ways`; None:
            there are none.
        last: reads inputs, their mask and groups for what the target's last layer stores of them.
    """

    embedded: Tensor
    features: Tensor
    states: Tensor
    mask: Tensor
    answer: Tensor
    images: Images | None
    output: Callable[[Tensor], Tensor]
    embed: Callable[[Tensor], Tensor]
    tokens: Tensor | None = None
    layer: nn.Module | None = None
    kept: dict[str, Tensor] = field(default_factory=dict)
    groups: Tensor | None = None
    last: Callable[[Tensor, Tensor, Tensor | None], LastLayer] | None = None

    def columns(self, known: Tensor) -> Columns:
        """The columns that a head reads, with the hidden states `known [R, S, H]` in them."""
        before = F.pad((known * self.mask[..., None])[:, :-1], (0, 0, 1, 0))
        return Columns(self.embedded, before, self.mask, self.mask & ~self.answer, self.images)

    def ahead(self, n: int) -> tuple[Tensor, Tensor]:
        """Places `[R, S]` that the n-th token behind every column is drawn from.

        A place is the number of a column in all rows. Beside it: whether that token, and those
        between, are of the answer `[R, S]`.
        """
        drafted = torch.ones_like(self.answer)
        for step in range(1, n + 1):
            drafted &= F.pad(self.answer[:, step:], (0, min(step, self.answer.shape[1])))
        place = torch.arange(self.answer.numel(), device=self.answer.device) + n - 1
        return place.view_as(self.answer), drafted

    def features_at(self, places: Tensor) -> Tensor:
        """The target's last hidden states `[N, D]` at places `[N]`."""
        return self.features.flatten(0, 1)[places]

    def law_at(self, places: Tensor, ids: Tensor | None = None) -> Tensor:
        """The target's law `[N, V]` at places `[N]`, or its part `[N, K]` for the tokens `ids`.

        For a part the normalisers of all laws are worked out once and kept.
        """
        features = self.features_at(places)
        if ids is None:
            return self.output(features).softmax(-1)
        if "normal" not in self.kept:
            self.kept["normal"] = self._normal()
        assert self.layer is not None
        rows = {name: weight[ids] for name, weight in self.layer.named_parameters()}
        logits = F.linear(features.to(rows["weight"].dtype), rows["weight"], rows.get("bias"))
        normal = self.kept["normal"].flatten()[places, None]
        return (logits.to(normal.dtype) - normal).exp()

    def said_at(self, places: Tensor, ids: Tensor | None = None) -> Tensor:
        """The token `[N]` drawn at each place; -1 if it is none of `ids`, else its number there."""
        if self.tokens is None:
            return torch.full_like(places, -1)
        said = F.pad(self.tokens[:, 1:], (0, 1)).flatten()[places]
        if ids is None:
            return said
        order = ids.argsort()
        at = torch.searchsorted(ids[order], said).clamp_max(len(ids) - 1)
        return torch.where(ids[order][at] == said, order[at], -1)

    @torch.no_grad()
    def _normal(self) -> Tensor:
        """`log Σ exp` of the target's logits at what is drafted `[R, S]`, 0 elsewhere."""
        asked = self.ahead(1)[1]
        parts = self.features[asked].split(AT_ONCE)
        found = torch.cat([self.output(part).logsumexp(-1) for part in parts])
        return torch.zeros(asked.shape, dtype=found.dtype, device=asked.device).masked_scatter(
            asked, found
        )
