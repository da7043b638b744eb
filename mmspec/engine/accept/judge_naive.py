"""The slow twin of judged tokens."""

from __future__ import annotations

from .naive import Law, Probs, on_lenient_chain


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

    def excused(i: int, x: int) -> bool:  # J > threshold
        return judged[i] > threshold and p[i][x] >= floor and p[i][x] > 0

    return on_lenient_chain(drafted, p, q, excused, greedy)
