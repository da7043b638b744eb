"""Reasons why a draft head is not accepted: checks of its files, and trials of other readings."""
