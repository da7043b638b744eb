"""Coins that prove: every branch is followed, every normal number integrated."""
