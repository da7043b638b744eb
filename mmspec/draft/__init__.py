"""Drafters, one a file."""
