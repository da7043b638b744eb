"""Drafters that know where tokens stand in the picture."""
