"""The slow twin of the routed token rule."""

from __future__ import annotations

from .naive import Law, Probs, on_lenient_chain


def routed_rule(
    drafted: list[int],
    p: list[Probs],
    q: list[Probs],
    trusted: list[bool],
    asks: bool,
    greedy: bool = False,
) -> Law:
    """S2D2 with a router, for one chain; `drafted`, `p`, `q` as in `token_rule`.

    `trusted` nodes stand, and all of a row that does not ask.
    """
    if not asks:  # what was filled by confidence is kept, and nothing follows
        return {tuple(drafted): 1.0}

    return on_lenient_chain(drafted, p, q, lambda i, x: trusted[i], greedy)
