"""Measures of a run: speed, quality, intervals, differences."""
