"""FLASH drafts K tokens a call: semi-autoregressive (Wang et al. 2025, section 3.3)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...engine.draft import Context
from ...models.guided import GuidedDecoder
from ...models.heads.columns import Images
from ...models.heads.decoder import FeatureHeadDecoder
from ...models.heads.flash import FlashHead
from .eagle import EagleModel


class FlashModel(EagleModel):
    """FLASH's head as a `BlockModel`; arguments as of `EagleModel`.

    A block's laws come from the slots behind its last token. The next block reads the drafted
    tokens, and in front of each the state of the slot that it was drawn from.
    """

    def __init__(
        self,
        head: FeatureHeadDecoder,
        target: GuidedDecoder,
        images: Images | None = None,
        warp: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        assert isinstance(head.network, FlashHead)
        super().__init__(head, target, images, warp)
        self._network = head.network
        self._slots = torch.zeros(0)  # [R, K, D]

    def block(self, context: Context, drafted: Tensor) -> Tensor:
        """See `BlockModel.block`."""
        done = drafted.shape[1]
        if not done:
            root = [b - 1 for b in context.base]
            self._read(context, context.last, root)
        else:
            size = self._network.block_size
            start = [b + done - size for b in context.base]
            self._own = self._behind(drafted[:, -size:], self._slots, start)
        self._slots = self._network.slots(self._own[:, -1])
        return self._laws(self._slots)
