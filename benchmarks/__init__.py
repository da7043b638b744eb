"""Benchmarks of the project itself, run from a checkout: `python -m benchmarks`."""
