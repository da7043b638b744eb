"""Scorers of pictures, one a file: rewards (a number per prompt and picture) and features."""
