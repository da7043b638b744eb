"""The drafter of chains with a head, by what a call of the head gives."""

from __future__ import annotations

from ...engine.protocols import Drafter
from ..draft_model import ModelDrafter
from .block import BlockDrafter
from .corrected import CorrectedModel
from .dflash import DFlashModel
from .falcon import FalconModel
from .feature_model import EagleDrafter, FeatureModel
from .flash import FlashModel
from .peagle import PEagleModel


def chain_of(model: FeatureModel) -> Drafter:
    """The drafter of chains with a head, block by block if a call gives several tokens."""
    if isinstance(model, CorrectedModel) or not isinstance(
        model, FlashModel | FalconModel | DFlashModel | PEagleModel
    ):
        return EagleDrafter(model, ModelDrafter(model))
    return EagleDrafter(model, BlockDrafter(model))
