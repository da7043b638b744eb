"""What a judge is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from PIL import Image

Metadata = Mapping[str, Any]  # a line of GenEval's `evaluation_metadata.jsonl`


class Judge(Protocol):
    """Says which pictures show what their prompts ask for.

    Attributes:
        name: the detector and what else the answers hang on, as reports spell it.
    """

    name: str

    def judge(
        self, prompts: Sequence[Metadata], images: Sequence[Image.Image]
    ) -> list[tuple[bool, str]]:
        """For each picture whether it is correct, and if not, why; `prompts[i]` for `images[i]`."""
