"""Chains drafted with a head in the loop: the engine that runs them, and its drafter."""

from __future__ import annotations

from ...engine.protocols import Drafter
from ..draft_model import ModelDrafter
from .block import BlockDrafter
from .corrected import CorrectedModel
from .dflash import DFlashModel
from .feature_model import EagleDrafter, FeatureModel
from .flash import FlashModel
from .peagle import PEagleModel


def chain_of(model: FeatureModel) -> Drafter:
    """The drafter of chains with a head, block by block if a call gives several tokens."""
    blocks = isinstance(model, FlashModel | DFlashModel | PEagleModel)
    if blocks and not isinstance(model, CorrectedModel):
        return EagleDrafter(model, BlockDrafter(model))
    return EagleDrafter(model, ModelDrafter(model))
