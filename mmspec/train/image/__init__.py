"""Recipes of image models and their drafters."""
