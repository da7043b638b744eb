"""The draft model of a head over a vision-language model, by the head's kind."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ...models.guided import GuidedDecoder
from ...models.heads.base import DraftHead
from ...models.heads.columns import Images
from ...models.heads.decoder import FeatureHeadDecoder, HeadDecoder
from ...models.heads.feature import FeatureHead
from ...models.heads.flash import FlashHead
from ...models.heads.loading import AnyHead
from ...models.heads.published.base_decoder import PublishedDecoder
from ...models.heads.published.decoder import (
    PublishedDFlashDecoder,
    PublishedPathDecoder,
    published_decoder,
)
from ...models.heads.published.eagle_decoder import (
    PublishedEagleDecoder,
    PublishedFlashDecoder,
    PublishedPEagleDecoder,
    PublishedPrefixDecoder,
)
from ...models.heads.published.head import PublishedHead
from ...models.transformers.causal import CausalDecoder
from .corrected import CorrectedModel
from .dflash import DFlashModel
from .eagle import EagleModel
from .feature_model import FeatureModel
from .flash import FlashModel
from .hydra import HydraModel, PrefixHydraModel
from .peagle import PEagleModel

AnyDecoder = HeadDecoder | PublishedDecoder


def head_decoder(head: AnyHead, target: CausalDecoder) -> AnyDecoder:
    """The head as it runs at inference, for any number of generations.

    Raises:
        InputError: it was made for another target.
    """
    if isinstance(head, PublishedHead):
        return published_decoder(head, target)
    assert isinstance(head, FeatureHead)
    return FeatureHeadDecoder(head, target)


def head_model(
    head: AnyHead | AnyDecoder,
    target: GuidedDecoder,
    images: Images | None = None,
    warp: Callable[[Tensor], Tensor] | None = None,
) -> FeatureModel:
    """The head as the draft model of one generation, for an `EagleDrafter`.

    Args:
        head: the network, or what `head_decoder` made of it.
        target: the target of this generation, before it starts.
        images: where its prompt has pictures.
        warp: see `FeatureModel`.

    Raises:
        InputError: it was made for another target, or drafts more than the target can take.
    """
    if isinstance(head, DraftHead | PublishedHead):
        assert isinstance(target.decoder, CausalDecoder)
        head = head_decoder(head, target.decoder)
    if isinstance(head, FeatureHeadDecoder):
        kind = FlashModel if isinstance(head.network, FlashHead) else EagleModel
        return kind(head, target, images, warp)
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
    assert isinstance(head, PublishedPathDecoder)
    return HydraModel(head, target, images, warp)
