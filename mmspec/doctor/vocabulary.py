"""A vocabulary map that belongs to another head, told from what is drafted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from .tally import Tally


def refitted(pairs: Sequence[tuple[int, int]]) -> Tally:
    """First tokens that would stand under a map made of half of the drafts, judged on the rest.

    Every drafted token becomes the one that the target said most often in its place.

    Args:
        pairs: first drafted token and the target's own.
    """
    stood = judged = 0
    for part in (0, 1):
        seen: dict[int, Counter[int]] = defaultdict(Counter)
        for drafted, said in pairs[part::2]:
            seen[drafted][said] += 1
        table = {drafted: counts.most_common(1)[0][0] for drafted, counts in seen.items()}
        judged += len(pairs[1 - part :: 2])
        stood += sum(table.get(d) == said for d, said in pairs[1 - part :: 2])
    return Tally((judged,), (stood,))


def constant(pairs: Sequence[tuple[int, int]]) -> Tally:
    """First tokens that would stand if the commonest token were drafted everywhere."""
    said = Counter(token for _, token in pairs).most_common(1)
    return Tally((len(pairs),), (said[0][1] if said else 0,))
