"""Acceptance rules, one a file; `naive` holds the slow twin of each."""
