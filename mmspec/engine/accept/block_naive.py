"""The slow twin of block verification."""

from __future__ import annotations

from .naive import Law, Probs, add


def block_rule(drafted: list[int], p: list[Probs], q: list[Probs]) -> Law:
    """Sun et al. 2024, algorithm 2, for one chain; arguments as in `token_rule`."""
    n = len(drafted)
    r = [1.0]  # r_i = min(r_{i−1} p_i(x_i) / q_i(x_i), 1)
    for i, x in enumerate(drafted):
        r.append(min(r[-1] * p[i][x] / q[i][x], 1.0))

    def residual(i: int) -> Probs:  # [r_i p_{i+1} − q_{i+1}]+
        return [max(0.0, r[i] * a - b) for a, b in zip(p[i], q[i], strict=True)]

    law: Law = {}
    open_ = 1.0  # probability that no longer prefix was kept
    for i in range(n, -1, -1):
        mass = sum(residual(i)) if i < n else 0.0
        if i == n:
            h = r[n]
        elif i == 0 or mass + 1 - r[i] == 0:  # nothing kept is what is left; 0/0 at r = 1, p = q
            h = 1.0
        else:
            h = mass / (mass + 1 - r[i])
        weights = residual(i) if mass > 0 else p[i]
        for y, weight in enumerate(weights):
            add(law, (*drafted[:i], y), open_ * h * weight / sum(weights))
        open_ *= 1 - h
    return law
