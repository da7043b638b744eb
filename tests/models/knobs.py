"""Configurations of any method, small ones."""

from __future__ import annotations

from typing import Any

import torch

from mmspec.methods import Modality, SpecConfig, serving


def with_knobs(method: str, modality: Modality, **knobs: Any) -> SpecConfig:
    """A method with those of some knobs that it reads."""
    read = SpecConfig(method).resolve(modality).options
    return SpecConfig(method, **{knob: value for knob, value in knobs.items() if knob in read})


def precision(request: Any, modality: Modality) -> torch.dtype:
    """The type of a test's model, by its parameter `method`, if it has one.

    float64, so that rounding decides nothing; but weights are rounded in float32 alone.
    """
    named = getattr(request.node, "callspec", None)
    method = None if named is None else named.params.get("method")
    rounds = method in serving(modality) and SpecConfig(method).resolve(modality).rounds
    return torch.float32 if rounds else torch.float64
