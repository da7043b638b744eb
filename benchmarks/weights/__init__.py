"""Rounded weights: bytes, cost of a call by its rows, and how far the laws move."""
