"""Procedural data with exact ground truth, on which embedded models are trained and judged."""
