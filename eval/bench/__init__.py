"""Benchmarks of the house itself: `mmspec eval bench`."""
