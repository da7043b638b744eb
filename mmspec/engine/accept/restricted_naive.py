"""The slow twin of the restricted rule."""

from __future__ import annotations

from .naive import Law, Probs, on_chain


def restricted_rule(
    drafted: list[int], p: list[Probs], q: list[Probs], early: list[Probs], least: float
) -> Law:
    """Exact form of FASER's pruning, for one chain; `drafted`, `p`, `q` as in `token_rule`.

    Args:
        early: laws of an early layer, in the places of `p`.
        least: θ.
    """

    def f(i: int, x: int) -> float:  # 1_U(x) min(1, p(x) / q(x)); of no account where q(x) = 0
        within = early[i][x] >= least
        return min(1.0, p[i][x] / q[i][x]) if within and q[i][x] else 0.0

    def residual(i: int) -> Probs:  # p − q f
        return [max(0.0, a - b * f(i, y)) for y, (a, b) in enumerate(zip(p[i], q[i], strict=True))]

    return on_chain(drafted, p, f, residual)
