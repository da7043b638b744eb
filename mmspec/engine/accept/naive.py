"""The slow, obvious twin of every rule, one row and one token at a time, as a law.

A twin does not sample: given a draft, it returns the probability of every emitted sequence,
straight from the formula. Tests compare the enumerated law of the fast rule with it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

Law = dict[tuple[int, ...], float]
Probs = list[float]


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

    return _on_chain(drafted, p, stands, residual)


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
            laws.append(_point(drafted[i], len(p[i])) if keeps else redrawn(i, failed))
        each = [passes(i) if outcome[i] else 1 - passes(i) for i in nodes]
        for tokens in itertools.product(*(range(len(probs)) for probs in laws)):
            chance = math.prod(probs[t] for probs, t in zip(laws, tokens, strict=True))
            if math.prod(each) * chance > 0:
                law[tokens] = law.get(tokens, 0.0) + math.prod(each) * chance
    return law


def _point(token: int, vocab: int) -> Probs:
    return [float(v == token) for v in range(vocab)]


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

    return _on_chain(drafted, p, stands, residual)


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

    return _on_chain(drafted, p, f, residual)


def _on_chain(
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
                _add(law, (*drafted[:i], y), kept * (1 - accept) * weight / sum(left))
        kept *= accept
    for y, weight in enumerate(p[-1]):  # all accepted: one bonus token from p
        _add(law, (*drafted, y), kept * weight)
    return law


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
            _add(law, (*drafted[:i], y), open_ * h * weight / sum(weights))
        open_ *= 1 - h
    return law


def recursive_rule(
    drafted: list[int],
    parents: list[int],
    p: list[Probs],
    q: list[Probs],
    replacement: bool = True,
) -> Law:
    """Recursive rejection on a tree (Jeon et al. 2024, algorithm 1; Chen et al. 2024, Sequoia).

    Args:
        drafted, parents: token and parent (-1: the root) of every node.
        p: target laws, n + 1 of them: behind the root and behind every node.
        q: the law that each node was drawn from.
        replacement: False takes the tokens of elder siblings out of q.
    """
    return _on_tree(drafted, parents, p, q, replacement, lambda left, x: left[x], _residual)


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
        return [0.0 if y in used else b for y, b in enumerate(_residual(left, draw, x))]

    return _on_tree(drafted, parents, p, q, replacement, credit, remaining)


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

    return _on_tree(drafted, parents, p, q, replacement, credit, _residual)


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
            rest = _residual(left, [0.0 if y in near else b for y, b in enumerate(draw)], x)
        return rest if sum(rest) else [float(y in codes) for y in range(len(left))]

    return _on_tree(drafted, parents, p, q, replacement, credit, remaining)


def _on_tree(
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
                _add(law, (x, *tail), fallen * stands * probability)
            fallen *= 1 - stands
            weights = remaining(left, draw, x)
            if sum(weights):
                left = [a / sum(weights) for a in weights]
            if not replacement:
                gone.add(x)
        for y, weight in enumerate(left):
            _add(law, (y,), fallen * weight)
        return law

    return behind(-1)


def _residual(left: Probs, draw: Probs, x: int) -> Probs:
    return [max(0.0, a - b) for a, b in zip(left, draw, strict=True)]  # [p − q]+


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


def k_seq_rule(drafted: list[int], p: list[Probs], q: Probs) -> Law:
    """Sun et al. 2023 (SpecTr), algorithm 3, for K candidates of one position.

    Args:
        drafted: the candidates, drawn independently from q.
        p: target laws behind the root and behind every candidate.
    """
    k, root = len(drafted), p[0]

    def beta(rho: float) -> float:
        return sum(min(b, a / rho) for a, b in zip(root, q, strict=True))

    low, high = 1.0, float(k)  # 1 − (1 − β)^K − ρ β falls in ρ and has its zero between
    for _ in range(200):
        rho = (low + high) / 2
        if 1 - (1 - beta(rho)) ** k > rho * beta(rho):
            low = rho
        else:
            high = rho
    total = beta(high)
    taken = (1 - (1 - total) ** k) / total if total else 0.0
    law: Law = {}
    fallen = 1.0
    for n, x in enumerate(drafted):
        stands = min(1.0, root[x] / (high * q[x]))
        for y, weight in enumerate(p[n + 1]):
            _add(law, (x, y), fallen * stands * weight)
        fallen *= 1 - stands
    left = [max(0.0, a - min(b, a / high) * taken) for a, b in zip(root, q, strict=True)]
    left = left if sum(left) > 1e-12 else root  # every candidate stands
    for y, weight in enumerate(left):
        _add(law, (y,), fallen * weight / sum(left))
    return law


def greedy_rule(drafted: list[int], p: list[Probs]) -> Law:
    """Equal argmax is kept; the first unequal one is replaced by the target's argmax."""
    emitted: list[int] = []
    for x, probs in zip([*drafted, -1], p, strict=True):
        best = probs.index(max(probs))
        emitted.append(best)
        if best != x:
            break
    return {tuple(emitted): 1.0}


def _add(law: Law, outcome: tuple[int, ...], probability: float) -> None:
    if probability > 0:
        law[outcome] = law.get(outcome, 0.0) + probability
