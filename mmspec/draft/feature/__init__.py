"""Drafters that read the target's hidden states."""
