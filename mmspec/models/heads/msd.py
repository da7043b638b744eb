"""MSD's head: text and pictures come in by ways of their own (Lin et al. 2025, section 3.2).

A text column is `fc([e; h])` as in EAGLE; a picture's column is its projected embedding itself,
with no hidden state in it.
"""

from __future__ import annotations

from .columns import Columns, Look
from .feature import FeatureHead


class MsdHead(FeatureHead):
    """See `FeatureHead`."""

    def look(self, columns: Columns) -> Look:
        return Look(values=columns.embedded)
