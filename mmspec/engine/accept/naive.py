"""Helpers of the slow twins of acceptance rules: laws as plain dictionaries.

A twin does not sample: given a draft, it returns the probability of every emitted sequence,
straight from the formula, one row and one token at a time. Tests compare the enumerated law of
the fast rule with it.
"""

from __future__ import annotations

from collections.abc import Callable

Law = dict[tuple[int, ...], float]


Probs = list[float]


def on_chain(
    drafted: list[int],
    p: list[Probs],
    stands: Callable[[int, int], float],
    residual: Callable[[int], Probs],
) -> Law:
    """Node i, x, is kept with probability `stands(i, x)`; after a fall `residual(i)` is drawn."""
    law: Law = {}
    kept = 1.0  # probability that everything so far was accepted
    for i, x in enumerate(drafted):
        accept, left = stands(i, x), residual(i)
        if sum(left) == 0:  # p = q: a rejection has probability 0, up to rounding
            left = p[i]
        for y, weight in enumerate(left):
            if accept < 1:
                add(law, (*drafted[:i], y), kept * (1 - accept) * weight / sum(left))
        kept *= accept
    for y, weight in enumerate(p[-1]):  # all accepted: one bonus token from p
        add(law, (*drafted, y), kept * weight)
    return law


def likeliest(law: Probs) -> Probs:
    """The law that has all on the likeliest token, the first of several."""
    return [float(y == law.index(max(law))) for y in range(len(law))]


def on_lenient_chain(
    drafted: list[int],
    p: list[Probs],
    q: list[Probs],
    excused: Callable[[int, int], bool],
    greedy: bool,
) -> Law:
    """Node i, x, is kept where `excused(i, x)`, else as the token rule or, `greedy`, argmax has it.

    What falls is drawn from [p − q]+, or is the likeliest token.
    """

    def stands(i: int, x: int) -> float:
        if excused(i, x):
            return 1.0
        return float(p[i].index(max(p[i])) == x) if greedy else min(1.0, p[i][x] / q[i][x])

    def residual(i: int) -> Probs:
        if greedy:
            return likeliest(p[i])
        return [max(0.0, a - b) for a, b in zip(p[i], q[i], strict=True)]

    return on_chain(drafted, [*p[:-1], likeliest(p[-1]) if greedy else p[-1]], stands, residual)


def on_tree(
    drafted: list[int],
    parents: list[int],
    p: list[Probs],
    q: list[Probs],
    replacement: bool,
    credit: Callable[[Probs, int], float],
    remaining: Callable[[Probs, Probs, int], Probs],
) -> Law:
    """A node's children one after the other: x stands if u < credit(p, x) / q(x), else
    p ← norm(remaining(p, q, x))."""

    def behind(node: int) -> Law:
        law: Law = {}
        left, fallen = p[node + 1], 1.0
        gone: set[int] = set()
        for child in (n for n, parent in enumerate(parents) if parent == node):
            x = drafted[child]
            draw = [0.0 if y in gone else b for y, b in enumerate(q[child])]
            draw = [b / sum(draw) if sum(draw) else 0.0 for b in draw]
            stands = min(1.0, credit(left, x) / draw[x]) if draw[x] else 0.0
            for tail, probability in behind(child).items():
                add(law, (x, *tail), fallen * stands * probability)
            fallen *= 1 - stands
            weights = remaining(left, draw, x)
            if sum(weights):
                left = [a / sum(weights) for a in weights]
            if not replacement:
                gone.add(x)
        for y, weight in enumerate(left):
            add(law, (y,), fallen * weight)
        return law

    return behind(-1)


def residual(left: Probs, draw: Probs, x: int) -> Probs:
    return [max(0.0, a - b) for a, b in zip(left, draw, strict=True)]  # [p − q]+


def add(law: Law, outcome: tuple[int, ...], probability: float) -> None:
    if probability > 0:
        law[outcome] = law.get(outcome, 0.0) + probability
