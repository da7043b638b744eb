"""Coloured shapes on textured backgrounds, captioned in GenEval's six task forms."""

from .prompts import Prompt, held_out_prompts, sample_prompt
from .render import render
from .scene import Background, Item, Scene, sample, sample_scene
from .vocabulary import COLORS, RELATIONS, SHAPES, TASKS

__all__ = [
    "COLORS",
    "RELATIONS",
    "SHAPES",
    "TASKS",
    "Background",
    "Item",
    "Prompt",
    "Scene",
    "held_out_prompts",
    "render",
    "sample",
    "sample_prompt",
    "sample_scene",
]
