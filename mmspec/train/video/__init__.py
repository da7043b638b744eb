"""Recipes of video models, their drafters and their router."""
