"""The slow, obvious twin of every rule, one row and one token at a time, as a law.

A twin does not sample: given a draft, it returns the probability of every emitted sequence,
straight from the formula. Tests compare the enumerated law of the fast rule with it.
"""

from __future__ import annotations

Law = dict[tuple[int, ...], float]
Probs = list[float]


def token_rule(drafted: list[int], p: list[Probs], q: list[Probs]) -> Law:
    """Leviathan et al. 2023, algorithm 1, for one chain.

    Args:
        drafted: tokens x_1..x_n.
        p: target laws, n + 1 of them: after the context, after x_1, … after x_n.
        q: the laws that the tokens were drawn from, n of them.
    """
    law: Law = {}
    kept = 1.0  # probability that everything so far was accepted
    for i, x in enumerate(drafted):
        accept = min(1.0, p[i][x] / q[i][x])  # u < p(x) / q(x)
        residual = [max(0.0, a - b) for a, b in zip(p[i], q[i], strict=True)]  # [p − q]+
        if sum(residual) == 0:  # p = q: a rejection has probability 0, up to rounding
            residual = p[i]
        mass = sum(residual)
        for y, weight in enumerate(residual):
            if accept < 1:
                _add(law, (*drafted[:i], y), kept * (1 - accept) * weight / mass)
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

    def behind(node: int) -> Law:
        law: Law = {}
        left, fallen = p[node + 1], 1.0
        gone: set[int] = set()
        for child in (n for n, parent in enumerate(parents) if parent == node):
            x = drafted[child]
            draw = [0.0 if y in gone else b for y, b in enumerate(q[child])]
            draw = [b / sum(draw) if sum(draw) else 0.0 for b in draw]
            stands = min(1.0, left[x] / draw[x]) if draw[x] else 0.0  # u < p(x) / q(x)
            for tail, probability in behind(child).items():
                _add(law, (x, *tail), fallen * stands * probability)
            fallen *= 1 - stands
            residual = [max(0.0, a - b) for a, b in zip(left, draw, strict=True)]
            if sum(residual):
                left = [a / sum(residual) for a in residual]  # p ← norm([p − q]+)
            if not replacement:
                gone.add(x)
        for y, weight in enumerate(left):
            _add(law, (y,), fallen * weight)
        return law

    return behind(-1)


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
