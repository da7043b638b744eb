"""The slow twin of greedy verification."""

from __future__ import annotations

from .naive import Law, Probs


def greedy_rule(drafted: list[int], p: list[Probs]) -> Law:
    """Equal argmax is kept; the first unequal one is replaced by the target's argmax."""
    emitted: list[int] = []
    for x, probs in zip([*drafted, -1], p, strict=True):
        best = probs.index(max(probs))
        emitted.append(best)
        if best != x:
            break
    return {tuple(emitted): 1.0}
