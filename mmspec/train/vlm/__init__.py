"""Recipes of vision-language models and their draft heads."""
