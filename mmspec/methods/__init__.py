"""Methods: their parts, options and presets, declared without importing torch."""

from .config import SpecConfig
from .names import config_of, parse_method
from .part import Preset
from .parts.pipelines import MODALITIES, PIPELINES, Modality
from .registry import parts, preset, presets
from .resolved import ResolvedConfig

__all__ = [
    "MODALITIES",
    "PIPELINES",
    "Modality",
    "Preset",
    "ResolvedConfig",
    "SpecConfig",
    "config_of",
    "parse_method",
    "parts",
    "preset",
    "presets",
    "serving",
]


def serving(modality: Modality) -> dict[str, Preset]:
    """The methods that work for a modality, by name."""
    return {name: preset for name, preset in presets().items() if modality in preset.serves}
