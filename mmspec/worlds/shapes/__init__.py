"""Coloured shapes on textured backgrounds, captioned in GenEval's six task forms."""

from .prompts import Prompt, prompt_list, sample_prompt
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
    "prompt_list",
    "render",
    "sample",
    "sample_prompt",
    "sample_scene",
]
