"""Mutants that change nothing, by `Mutant.key`, and why: nobody can write a test against them."""

EQUIVALENT: dict[str, str] = {}
