"""Draft-length policies: how far to speculate, row by row."""
