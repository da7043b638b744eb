"""P-EAGLE: an EAGLE-3 head that says several tokens a call (Hui et al. 2026)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...engine.draft import Context
from ...models.heads.published.eagle_decoder import PublishedPEagleDecoder
from .eagle import EagleModel


class PEagleModel(EagleModel):
    """P-EAGLE's head as a `BlockModel`; it drafts one block a round.

    Behind the root stand places with a mask token and a learned vector in place of the target's
    hidden state. Each says one token more, whatever the others turn out to be. Arguments as of
    `EagleModel`.
    """

    decoder: PublishedPEagleDecoder

    @property
    def most(self) -> int:  # type: ignore[override]
        """Tokens that a block says."""
        return self.decoder.most

    def block(self, context: Context, drafted: Tensor) -> Tensor:
        assert not drafted.shape[1], "it drafts one block a round"
        first = self._read(context, context.last, [b - 1 for b in context.base])
        if self.most < 2:
            return first
        masks = self.decoder.masked(len(self.prefix))
        others = self._laws(self._forward(masks, list(context.base)))
        return torch.cat([first, others], dim=1)
