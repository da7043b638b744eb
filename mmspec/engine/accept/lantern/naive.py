"""The slow twins of LANTERN's rules."""

from __future__ import annotations

from ..naive import Law, Probs, on_tree, residual


def lantern_rule(
    drafted: list[int],
    parents: list[int],
    p: list[Probs],
    q: list[Probs],
    neighbours: list[list[int]],
    delta: float,
    replacement: bool = True,
) -> Law:
    """Jang et al. 2024 (LANTERN), section 4; arguments as in `recursive_rule`.

    Args:
        neighbours: the codes nearest to each code.
        delta: the most probability of neighbours that a token may be credited with.
    """

    def pool(left: Probs, x: int) -> list[int]:
        return _pool(left, x, neighbours, delta)  # Σ p(n_i) ≤ δ

    def credit(left: Probs, x: int) -> float:
        return left[x] + sum(left[n] for n in pool(left, x))  # p(x) + Σ p(n_i)

    def remaining(left: Probs, draw: Probs, x: int) -> Probs:
        used = pool(left, x) if draw[x] == 1 else []  # chosen: p(n_i) ← 0
        return [0.0 if y in used else b for y, b in enumerate(residual(left, draw, x))]

    return on_tree(drafted, parents, p, q, replacement, credit, remaining)


def lantern_plus_plus_rule(
    drafted: list[int],
    parents: list[int],
    p: list[Probs],
    q: list[Probs],
    neighbours: list[list[int]],
    lam: float,
    replacement: bool = True,
) -> Law:
    """Park et al. 2025 (LANTERN++); arguments as in `lantern_rule`, λ in place of δ."""

    def credit(left: Probs, x: int) -> float:
        pool = _pool(left, x, neighbours, (lam - 1) * left[x])  # Σ p(n_i) ≤ (λ − 1) p(x)
        return left[x] + sum(left[n] for n in pool)  # p(x) + Σ p(n_i)

    return on_tree(drafted, parents, p, q, replacement, credit, residual)


def lantern_released_rule(
    drafted: list[int],
    parents: list[int],
    p: list[Probs],
    q: list[Probs],
    neighbours: list[list[int]],
    k: int,
    delta: float | None = None,
    lam: float = 1.0,
    replacement: bool = True,
) -> Law:
    """Both as github.com/jadohu/LANTERN computes them; arguments as in `lantern_rule`.

    Args:
        k: neighbours that may be pooled, of the k + 1 in the table.
        delta: LANTERN's δ; None: LANTERN++ with λ = `lam`.
    """
    codes = range(len(neighbours))

    def pool(left: Probs, x: int) -> list[int]:  # the longest prefix with Σ p(n_i) ≤ bound
        bound = (lam - 1) * left[x] if delta is None else delta
        near = neighbours[x][:k] if x in codes else []
        return max(
            (near[:m] for m in range(len(near) + 1) if sum(left[n] for n in near[:m]) <= bound),
            key=len,
        )

    def credit(left: Probs, x: int) -> float:
        return left[x] + sum(left[n] for n in pool(left, x))  # p(x) + Σ p(n_i), also if p(x) = 0

    def remaining(left: Probs, draw: Probs, x: int) -> Probs:
        if draw[x] == 0:  # drafted again: passed over
            return left
        near = neighbours[x][: k + 1] if pool(left, x) else []
        if draw[x] == 1:  # chosen: p(x) ← 0, p(n_i) ← 0
            rest = [0.0 if y == x or y in near else a for y, a in enumerate(left)]
        else:  # drawn: q(n_i) ← 0, [p − q]+
            rest = residual(left, [0.0 if y in near else b for y, b in enumerate(draw)], x)
        return rest if sum(rest) else [float(y in codes) for y in range(len(left))]

    return on_tree(drafted, parents, p, q, replacement, credit, remaining)


def _pool(left: Probs, x: int, neighbours: list[list[int]], bound: float) -> list[int]:
    """The longest prefix of x's neighbours whose probability is within the bound."""
    members: list[int] = []
    if left[x] == 0 or x >= len(neighbours):  # never relaxed
        return members
    for n in neighbours[x]:
        if sum(left[m] for m in [*members, n]) > bound:
            break
        members.append(n)
    return members
