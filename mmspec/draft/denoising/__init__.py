"""Drafters of denoising steps, and of whole tokens of vectors."""
