"""What a configuration promises about its output, without a model."""

from __future__ import annotations

from ..config import SpecConfig
from ..engine.laws import Contract
from ..methods import Modality


def contract(config: SpecConfig, modality: Modality) -> Contract:
    """What a configuration promises of draws; a run says it again, for its own temperature.

    Raises:
        InputError: it is not for the modality.
    """
    from .continuous.parts import make_gaussian_rule
    from .parts import make_rule

    parts = config.serving(modality)
    alone = parts.drafter_only or config.method == "verdict"
    if alone or parts.target_compressor is not None:
        return "lossy"
    if modality == "video":
        return "exact" if parts.drafter == "null" else "lossy"
    if modality == "continuous":
        return make_gaussian_rule(parts).contract
    import torch

    return make_rule(parts, 1.0, lambda: torch.eye(2)).contract
