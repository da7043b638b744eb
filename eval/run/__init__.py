"""Runs: jobs cut into units, who does them, and the folder that they are kept in."""
