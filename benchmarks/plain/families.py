"""Families that draw, at any size and with random weights.

What drawing tokens does not run, towers of eyes and decoders of pixels, is made small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from . import emu3, glm_image, janus, llamagen
from .sizes import Published
from .subjects import Subject


@dataclass(frozen=True)
class Family:
    """A family: what makes a network of it, and what runs the network."""

    network: Callable[[Published, int, int], nn.Module]
    subject: Callable[[Any, int], Subject]


FAMILIES = {
    "llamagen": Family(llamagen.network, llamagen.subject),
    "janus": Family(janus.network, janus.subject),
    "emu3": Family(emu3.network, emu3.subject),
    "glm-image": Family(glm_image.network, glm_image.subject),
}
