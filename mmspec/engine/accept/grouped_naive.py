"""The slow twin of grouped verification."""

from __future__ import annotations

import math

from .naive import Law, Probs, on_chain


def grouped_rule(
    drafted: list[int],
    p: list[Probs],
    q: list[Probs],
    group_size: int,
    probability_bound: float = math.inf,
    codebook: list[list[float]] | None = None,
    distance_bound: float = math.inf,
) -> Law:
    """So et al. 2025 (GSD) for one chain; `drafted`, `p` and `q` as in `token_rule`.

    C(x): the tokens at most (G − 1) // 2 ranks above and G // 2 below x in the order of p that the
    target can emit and whose probability and code are nearer to x's than the bounds.
    """

    def cluster(i: int, x: int) -> list[int]:
        order = sorted(range(len(p[i])), key=lambda y: (-p[i][y], y))
        rank = order.index(x)
        first = max(0, rank - (group_size - 1) // 2)
        others = [y for y in order[first : rank + group_size // 2 + 1] if y != x and p[i][y] > 0]
        near = [y for y in others if abs(p[i][y] - p[i][x]) < probability_bound]
        if codebook is not None:
            near = [y for y in near if math.dist(codebook[y], codebook[x]) < distance_bound]
        return [x, *near]

    def stands(i: int, x: int) -> float:  # u < Σ_C p / Σ_C q, and never if p(x) = 0
        c = cluster(i, x)
        return min(1.0, sum(p[i][y] for y in c) / sum(q[i][y] for y in c)) if p[i][x] else 0.0

    def residual(i: int) -> Probs:  # [p − q]+ on plain tokens
        return [max(0.0, a - b) for a, b in zip(p[i], q[i], strict=True)]

    return on_chain(drafted, p, stands, residual)
