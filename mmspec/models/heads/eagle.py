"""EAGLE's head under a vision-language model: pictures are read as text is (Li et al. 2024).

`fc([e(x_t); h_{t−1}])`, e of a picture's column its projected embedding; the layer has its first
norm, which the published heads leave out (EagleVLM of SpecVLM, Huang et al. 2025, section 3.1).
"""

from __future__ import annotations

from .feature import FeatureHead


class EagleVlmHead(FeatureHead):
    """See `FeatureHead`; it reads every column."""
