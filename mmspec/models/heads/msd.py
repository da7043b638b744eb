"""MSD's head: text and pictures come in by ways of their own (Lin et al. 2025, section 3.2).

A text column is `fc([e; h])` as in EAGLE; a picture's column is its projected embedding itself,
with no hidden state in it.
"""

from __future__ import annotations

from typing import Any

from diffusers.configuration_utils import register_to_config

from .columns import Columns, Look
from .feature import FeatureHead


class MsdHead(FeatureHead):
    """See `FeatureHead`."""

    @register_to_config
    def __init__(self, target: dict[str, Any], sizes: dict[str, Any]) -> None:
        super().__init__(target, sizes)

    def look(self, columns: Columns) -> Look:
        return Look(values=columns.embedded)
