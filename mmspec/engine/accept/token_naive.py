"""The slow twin of the exact token rule."""

from __future__ import annotations

from .naive import Law, Probs, on_chain


def token_rule(drafted: list[int], p: list[Probs], q: list[Probs]) -> Law:
    """Leviathan et al. 2023, algorithm 1, for one chain.

    Args:
        drafted: tokens x_1..x_n.
        p: target laws, n + 1 of them: after the context, after x_1, … after x_n.
        q: the laws that the tokens were drawn from, n of them.
    """

    def stands(i: int, x: int) -> float:  # u < p(x) / q(x)
        return min(1.0, p[i][x] / q[i][x])

    def residual(i: int) -> Probs:  # [p − q]+
        return [max(0.0, a - b) for a, b in zip(p[i], q[i], strict=True)]

    return on_chain(drafted, p, stands, residual)
