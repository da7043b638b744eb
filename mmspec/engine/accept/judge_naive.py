"""The slow twin of judged tokens."""

from __future__ import annotations

from .naive import Law, Probs, on_chain


def judge_rule(
    drafted: list[int],
    p: list[Probs],
    q: list[Probs],
    judged: list[float],
    threshold: float,
    floor: float,
    greedy: bool = False,
) -> Law:
    """Judge Decoding with a floor, for one chain; `drafted`, `p`, `q` as in `token_rule`.

    `judged` are J of the tokens, each of the target's state after reading it.
    """

    def stands(i: int, x: int) -> float:  # J > threshold, or u < p(x) / q(x)
        if judged[i] > threshold and p[i][x] >= floor and p[i][x] > 0:
            return 1.0
        if greedy:
            return float(p[i].index(max(p[i])) == x)
        return min(1.0, p[i][x] / q[i][x])

    def likeliest(law: Probs) -> Probs:
        return [float(y == law.index(max(law))) for y in range(len(law))]

    def residual(i: int) -> Probs:  # [p − q]+
        if greedy:
            return likeliest(p[i])
        return [max(0.0, a - b) for a, b in zip(p[i], q[i], strict=True)]

    bonus = likeliest(p[-1]) if greedy else p[-1]
    return on_chain(drafted, [*p[:-1], bonus], stands, residual)
