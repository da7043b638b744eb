"""Recipes of models of continuous tokens."""
