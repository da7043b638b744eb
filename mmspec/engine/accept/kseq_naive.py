"""The slow twin of SpecTr's K-SEQ."""

from __future__ import annotations

from .naive import Law, Probs, add


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
            add(law, (x, y), fallen * stands * weight)
        fallen *= 1 - stands
    left = [max(0.0, a - min(b, a / high) * taken) for a, b in zip(root, q, strict=True)]
    left = left if sum(left) > 1e-12 else root  # every candidate stands
    for y, weight in enumerate(left):
        add(law, (y,), fallen * weight / sum(left))
    return law
