"""Clips of moving shapes, captioned in plain words, and their judge.

The shapes, colours, the tones behind them and the detector are the shapes world's. Its textures are
not: they would take more of a small autoencoder than all that moves.
"""

from .clip import Clip, Mover, sample, sample_clip
from .held_out import HeldOutClip, held_out_clips, read_held_out_clips
from .judge import ClipScore, judge
from .prompts import ClipPrompt, sample_prompt
from .render import render_clip
from .timing import Timing
from .vocabulary import DIRECTIONS, KINDS, Kind

__all__ = [
    "DIRECTIONS",
    "KINDS",
    "Clip",
    "ClipPrompt",
    "ClipScore",
    "HeldOutClip",
    "Kind",
    "Mover",
    "Timing",
    "held_out_clips",
    "judge",
    "read_held_out_clips",
    "render_clip",
    "sample",
    "sample_clip",
    "sample_prompt",
]
