"""Statements of descriptions in which drafted tokens were left: whether these are to blame.

A token is important if its statement is false with it, and true as the target itself ends it. The
shapes world tells, so that nobody has to annotate texts (Judge Decoding), and one text tells of
many tokens, where AutoJudge lets the target finish a whole answer for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...worlds.shapes.exchanges import Picture, score_long

ENDS = ".;!?"  # of a statement


def in_false(
    tokenizer: Any, ids: Sequence[int], places: Sequence[int], picture: Picture
) -> dict[int, bool]:
    """Tell of each of the `places` for which it can be told whether its statement is false.

    Places count up to the first one that is to blame: what follows builds on it. Where a false
    statement holds several nobody knows which it is. One that holds none is the target's own error.
    """
    told: dict[int, bool] = {}
    start, wrong = 0, 0
    for end in range(len(ids)):
        if not ends_statement(tokenizer, ids[end]):
            continue
        before, wrong = wrong, _wrong(tokenizer, ids[: end + 1], picture)
        inside = [place for place in places if start <= place <= end]
        if wrong <= before or len(inside) == 1:
            told |= dict.fromkeys(inside, wrong > before)
        if wrong > before and inside:
            break
        start = end + 1
    return told


def ends_false(tokenizer: Any, ids: Sequence[int], picture: Picture) -> bool:
    """True if the last statement of a text is false."""
    inner = [n for n, token in enumerate(ids[:-1]) if ends_statement(tokenizer, token)]
    before = _wrong(tokenizer, ids[: inner[-1] + 1], picture) if inner else 0
    return _wrong(tokenizer, ids, picture) > before


def ends_statement(tokenizer: Any, token: int) -> bool:
    """True for tokens that end a statement."""
    return bool({*tokenizer.decode([token])} & {*ENDS})


def _wrong(tokenizer: Any, ids: Sequence[int], picture: Picture) -> int:
    """Claims of a text that are false."""
    score = score_long(tokenizer.decode(ids, skip_special_tokens=True), picture)
    return score.claims - score.true
