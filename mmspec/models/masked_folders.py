"""Folders of masked language models: what their configurations say, and published layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from ..files import read_object

Reading = Literal["causal", "whole"]
# names in a configuration; the first two are published ones
MASK, SEPARATOR = "mask_token_id", "sep_token_id"
SHIFTED, READING = "shifted_logits", "prefix_reading"


class Published(NamedTuple):
    """Layout of published masked models: that of a class of transformers under another name.

    Attributes:
        family: transformers' name of it.
        shifted, reading: what such models are, see `MaskedForm`, unless their files say more.
    """

    family: str
    shifted: bool = False
    reading: Reading = "whole"


# by `model_type`; the code that comes with such files is not run
PUBLISHED = {
    "Dream": Published("qwen2", shifted=True),
    "a2d-llama": Published("llama"),
    "a2d-qwen2": Published("qwen2"),
    "a2d-qwen3": Published("qwen3"),
    "sdar": Published("qwen3", reading="causal"),
}


def is_masked(folder: Path) -> bool:
    """True if a folder holds a masked language model."""
    file = folder / "config.json"
    config = read_object(file) if file.exists() else {}
    return config.get(MASK) is not None or config.get("model_type") in PUBLISHED
