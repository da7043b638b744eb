"""Models that transformers has, as targets and as draft models."""
