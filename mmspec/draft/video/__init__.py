"""Drafters of blocks of video."""
