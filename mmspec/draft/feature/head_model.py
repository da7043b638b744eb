"""The draft model of a head over a vision-language model, by the head's kind."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ...models.guided import GuidedDecoder
from ...models.heads.columns import Images
from ...models.heads.published.base_decoder import PublishedDecoder
from ...models.heads.published.decoder import (
    PublishedDFlashDecoder,
    PublishedPathDecoder,
    published_decoder,
)
from ...models.heads.published.eagle_decoder import (
    PublishedEagleDecoder,
    PublishedFalconDecoder,
    PublishedFlashDecoder,
    PublishedPEagleDecoder,
    PublishedPrefixDecoder,
)
from ...models.heads.published.head import PublishedHead
from ...models.heads.published.longspec_decoder import PublishedLongSpecDecoder
from ...models.transformers.causal import CausalDecoder
from .corrected import CorrectedModel
from .dflash import DFlashModel
from .eagle import EagleModel
from .falcon import FalconModel
from .feature_model import FeatureModel
from .flash import FlashModel
from .hydra import HydraModel, PrefixHydraModel
from .longspec import LongSpecModel
from .peagle import PEagleModel


def head_model(
    head: PublishedHead | PublishedDecoder,
    target: GuidedDecoder,
    images: Images | None = None,
    warp: Callable[[Tensor], Tensor] | None = None,
) -> FeatureModel:
    """The head as the draft model of one generation, for an `EagleDrafter`.

    Args:
        head: the network, or what `published_decoder` made of it.
        target: the target of this generation, before it starts.
        images: where its prompt has pictures.
        warp: see `FeatureModel`.

    Raises:
        InputError: it was made for another target, or drafts more than the target can take.
    """
    if isinstance(head, PublishedHead):
        assert isinstance(target.decoder, CausalDecoder)
        head = published_decoder(head, target.decoder)
    if isinstance(head, PublishedFalconDecoder):
        return FalconModel(head, target, images, warp)
    if isinstance(head, PublishedFlashDecoder):
        return FlashModel(head, target, images, warp)
    if isinstance(head, PublishedPEagleDecoder):
        return PEagleModel(head, target, images, warp)
    if isinstance(head, PublishedPrefixDecoder):
        return PrefixHydraModel(head, target, images, warp)
    if isinstance(head, PublishedEagleDecoder):
        return EagleModel(head, target, images, warp)
    if isinstance(head, PublishedDFlashDecoder) and head.network.correction is not None:
        return CorrectedModel(head, head.network.correction, target, warp)
    if isinstance(head, PublishedDFlashDecoder):
        return DFlashModel(head, target, warp)
    if isinstance(head, PublishedLongSpecDecoder):
        return LongSpecModel(head, target, warp)
    assert isinstance(head, PublishedPathDecoder)
    return HydraModel(head, target, images, warp)
