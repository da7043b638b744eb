"""Drafters of trees, and what trees are made of."""
