"""FLASH drafts K tokens a call: semi-autoregressive (Wang et al. 2025, section 3.3)."""

from __future__ import annotations

from torch import Tensor

from ...engine.draft import Context
from ...models.heads.published.eagle_decoder import PublishedFlashDecoder
from ...models.heads.published.flash import FlashNetwork
from .eagle import EagleModel
from .feature_model import less


class FlashModel(EagleModel):
    """FLASH's head as a `BlockModel`; arguments as of `EagleModel`.

    A block's laws come from the slots behind its last token. The next block reads the drafted
    tokens, and in front of each the state of the slot that it was drawn from.
    """

    decoder: PublishedFlashDecoder
    _slots: Tensor  # [R, K, D]

    def block(self, context: Context, drafted: Tensor) -> Tensor:
        done, network = drafted.shape[1], self.decoder.network
        assert isinstance(network, FlashNetwork)
        if not done:
            root = [b - 1 for b in context.base]
            hidden, first = self._committed(context, context.last, root)
            self._own = self._columns(hidden, less(root, first))
        else:
            size = self._slots.shape[1]
            start = [b + done - size for b in context.base]
            self._own = self._behind(drafted[:, -size:], self._slots, start)
        self._slots = network.slots(self._own[:, -1])
        return self._laws(self._slots)
