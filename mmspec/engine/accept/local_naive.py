"""The slow twin of local verification."""

from __future__ import annotations

import itertools
import math

from .naive import Law, Probs


def local_rule(
    drafted: list[int],
    cells: list[tuple[int, int]],
    p: list[Probs],
    q: list[Probs],
    threshold: float,
    neighbours: list[list[int]],
    radius: int = 0,
    criterion: str = "threshold",
) -> Law:
    """Peruzzo et al. 2026 (MuLo-SD), section 3.2, for one chain, before anything is drawn in turn.

    Args:
        drafted: tokens x_1..x_n.
        cells: row and column of each.
        p, q: the target's laws at them, and those that they were drawn from, n each.
        threshold: θ.
        neighbours: the nearest codes of every code, which are pooled.
        radius: l.
        criterion: "threshold" or "ratio".
    """
    nodes = range(len(drafted))

    def passes(i: int) -> float:
        x = drafted[i]
        pooled = p[i][x] + sum(p[i][y] for y in neighbours[x])  # P(x)
        if p[i][x] == 0:
            return 0.0
        if criterion == "threshold":  # P(x) ≥ θ
            return float(pooled >= threshold)
        return min(1.0, pooled / (threshold * q[i][x]))  # u < P(x) / (θ q(x))

    def near(i: int, j: int) -> bool:
        return max(abs(a - b) for a, b in zip(cells[i], cells[j], strict=True)) <= radius

    def redrawn(i: int, failed: list[int]) -> Probs:
        rest = [max(0.0, a - b) for a, b in zip(p[i], q[i], strict=True)]  # [p − q]+
        if criterion == "threshold" or failed != [i] or sum(rest) == 0:
            return p[i]
        return [r / sum(rest) for r in rest]

    law: Law = {}
    for outcome in itertools.product([True, False], repeat=len(drafted)):
        laws = []
        for i in nodes:
            failed = [j for j in nodes if not outcome[j] and near(i, j)]
            keeps = not failed or p[i][drafted[i]] == 1
            point = [float(v == drafted[i]) for v in range(len(p[i]))]
            laws.append(point if keeps else redrawn(i, failed))
        each = [passes(i) if outcome[i] else 1 - passes(i) for i in nodes]
        for tokens in itertools.product(*(range(len(probs)) for probs in laws)):
            chance = math.prod(probs[t] for probs, t in zip(laws, tokens, strict=True))
            if math.prod(each) * chance > 0:
                law[tokens] = law.get(tokens, 0.0) + math.prod(each) * chance
    return law
