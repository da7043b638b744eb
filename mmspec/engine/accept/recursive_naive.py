"""The slow twin of recursive rejection."""

from __future__ import annotations

from .naive import Law, Probs, on_tree, residual


def recursive_rule(
    drafted: list[int], parents: list[int], p: list[Probs], q: list[Probs], replacement: bool = True
) -> Law:
    """Recursive rejection on a tree (Jeon et al. 2024, algorithm 1; Chen et al. 2024, Sequoia).

    Args:
        drafted, parents: token and parent (-1: the root) of every node.
        p: target laws, n + 1 of them: behind the root and behind every node.
        q: the law that each node was drawn from.
        replacement: False takes the tokens of elder siblings out of q.
    """
    return on_tree(drafted, parents, p, q, replacement, lambda left, x: left[x], residual)
