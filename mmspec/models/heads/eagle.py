"""EAGLE's head under a vision-language model: pictures are read as text is (Li et al. 2024).

`fc([e(x_t); h_{t−1}])`, e of a picture's column its projected embedding; the layer has its first
norm, which the published heads leave out (EagleVLM of SpecVLM, Huang et al. 2025, section 3.1).
"""

from __future__ import annotations

from typing import Any

from diffusers.configuration_utils import register_to_config

from .feature import FeatureHead


class EagleVlmHead(FeatureHead):
    """See `FeatureHead`; it reads every column."""

    @register_to_config
    def __init__(self, target: dict[str, Any], sizes: dict[str, Any]) -> None:
        super().__init__(target, sizes)
