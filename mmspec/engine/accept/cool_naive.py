"""The slow twin of annealed relaxation."""

from __future__ import annotations

import math

from .naive import Law, Probs, on_chain


def cool_rule(
    drafted: list[int],
    p: list[Probs],
    q: list[Probs],
    delta: float,
    length: int,
    nu: float,
    floor: float,
) -> Law:
    """Li et al. 2026 (Cool-SD), theorem 2, for one chain; `drafted`, `p`, `q` as in `token_rule`.

    ω_i = max(floor, δ exp(−ν i − μ)), i from 1, and μ such that exp(−ν i − μ) is 1 on average over
    i ≤ length.
    """
    mu = math.log(sum(math.exp(-nu * i) for i in range(1, length + 1)) / length)

    def f(i: int, x: int) -> float:  # min(1, ω p(x) / q(x)); of no account where q(x) = 0
        omega = max(floor, delta * math.exp(-nu * (i + 1) - mu))
        return min(1.0, omega * p[i][x] / q[i][x]) if q[i][x] else 0.0

    def residual(i: int) -> Probs:  # [p − q f]+
        return [max(0.0, a - b * f(i, y)) for y, (a, b) in enumerate(zip(p[i], q[i], strict=True))]

    return on_chain(drafted, p, f, residual)
