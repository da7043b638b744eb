"""Recipes that train the embedded models and the drafters."""
