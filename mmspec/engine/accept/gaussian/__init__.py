"""Acceptance rules on normal laws, and their slow twins."""
