"""The slow, obvious twins of the rules on normal laws: one row, plain numbers.

A law is a list of (mean, deviation), one a coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Vector = Sequence[float]
Normal = Sequence[tuple[float, float]]


def density(x: Vector, law: Normal) -> float:
    """∏_c φ((x_c − μ_c) / σ_c) / σ_c."""
    factors = (
        math.exp(-(((v - mean) / std) ** 2) / 2) / (std * math.sqrt(2 * math.pi))
        for v, (mean, std) in zip(x, law, strict=True)
    )
    return math.prod(factors)


def residual(x: Vector, p: Normal, q: Normal, r: float = 1.0) -> float:
    """[r p(x) − q(x)]+, not normalized."""
    return max(0.0, r * density(x, p) - density(x, q))


def mass(p: Normal, q: Normal, r: float, points: int = 8001) -> float:
    """R = ∫ [r p − q]+ in one dimension, by the trapezoid rule over 10 deviations."""
    edges = [mean + side * 10 * std for mean, std in (*p, *q) for side in (-1, 1)]
    low, high = min(edges), max(edges)
    step = (high - low) / (points - 1)
    return sum(residual([low + n * step], p, q, r) for n in range(points)) * step


def reflected(x: Vector, p: Normal, q: Normal) -> list[float]:
    """De Bortoli et al. 2025, algorithm 3: where x, drawn from q, goes if it falls.

    With deviations of its own on either side: what is 0 mean and unit deviation under q is so
    under p.
    """
    xi = [(v - mean) / std for v, (mean, std) in zip(x, q, strict=True)]
    turned = mirrored(xi, p, q)
    return [mean + std * v for v, (mean, std) in zip(turned, p, strict=True)]


def mirrored(xi: Vector, p: Normal, q: Normal) -> list[float]:
    """`xi` with its part along the difference of the means, in deviations of p, turned round."""
    z = [(b - a) / std for (a, std), (b, _) in zip(p, q, strict=True)]
    e = [v / (math.hypot(*z) or 1.0) for v in z]
    along = sum(a * b for a, b in zip(e, xi, strict=True))
    return [n - 2 * along * d for n, d in zip(xi, e, strict=True)]


def lacking(y: Vector, p: Normal, q: Normal) -> tuple[float, float]:
    """[p − q]+ at y, and what the mirror images of fallen vectors give of it, which may be more."""
    xi = [(v - mean) / std for v, (mean, std) in zip(y, p, strict=True)]
    x = [mean + std * v for v, (mean, std) in zip(mirrored(xi, p, q), q, strict=True)]
    fell = max(0.0, 1 - density(x, p) / density(x, q))
    return residual(y, p, q), density(y, p) * fell


def in_turn(drafted: Sequence[Vector], p: Sequence[Normal], q: Sequence[Normal]) -> list[float]:
    """The probabilities that 0, 1, … n of the drafted are kept, where each stands with min(1, p/q).

    The law of both step-by-step rules, "reflection" and "gamma-maximal".

    Args:
        drafted: vectors x_1 … x_n.
        p, q: the target's laws, n or more, and those that the vectors were drawn from.
    """
    kept, out = 1.0, []
    for x, mine, other in zip(drafted, p[: len(drafted)], q, strict=True):
        stands = min(1.0, density(x, mine) / density(x, other))
        out.append(kept * (1 - stands))
        kept *= stands
    return [*out, kept]


def block(
    drafted: Sequence[Vector],
    p: Sequence[Normal],
    q: Sequence[Normal],
    gained: Callable[[Normal, Normal, float], float] = mass,
) -> list[float]:
    """Sun et al. 2024, algorithm 2, on densities; the same probabilities for block verification.

    `gained` gives R = ∫ [r p − q]+.
    """
    n, r = len(drafted), [1.0]  # r_i = min(1, r_{i−1} p_i(x_i) / q_i(x_i))
    for x, mine, other in zip(drafted, p[: len(drafted)], q, strict=True):
        r.append(min(1.0, r[-1] * density(x, mine) / density(x, other)))
    out, open_ = [0.0] * (n + 1), 1.0  # open_: the probability that no longer prefix was kept
    for i in range(n, -1, -1):
        if i == n:
            h = r[n]
        else:
            left = gained(p[i], q[i], r[i])
            short = 1 - r[i]
            h = left / (left + short) if i and left + short else 1.0  # 0/0 at r = 1, p = q
        out[i] = open_ * h
        open_ *= 1 - h
    return out
