"""Configurations of any method, small ones."""

from __future__ import annotations

from typing import Any

from mmspec.methods import Modality, SpecConfig


def with_knobs(method: str, modality: Modality, **knobs: Any) -> SpecConfig:
    """A method with those of some knobs that it reads."""
    read = SpecConfig(method).resolve(modality).options
    return SpecConfig(method, **{knob: value for knob, value in knobs.items() if knob in read})
