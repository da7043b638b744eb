"""Procedural data with exact ground truth: what the embedded models are trained on and judged by."""
