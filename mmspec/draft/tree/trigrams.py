"""Trigrams: how often tokens have followed a pair of tokens, and trees of what they expect."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

MOST_PAIRS = 2**16  # that live on

Pair = tuple[int, int]
Node = tuple[int, int]  # parent, -1 for the root, and token
Likely = Callable[[Pair, int], list[tuple[int, float]]]


@dataclass
class Trigrams:
    """Counts of tokens by the pair in front of them.

    Attributes:
        before: counts of earlier texts, which are read and not changed; None: there are none.
        counts: those of this text.
    """

    before: Trigrams | None = None
    counts: dict[Pair, dict[int, int]] = field(default_factory=dict)

    def learn(self, text: Sequence[int], start: int, above: int) -> None:
        """Count the tokens of a text from place `start` on, each behind its `pair`."""
        for place in range(start, len(text)):
            found = self.counts.setdefault(pair(text, place, above), {})
            count = found.pop(text[place], 0)
            found[text[place]] = count + 1  # the latest stands last

    def behind(self, key: Pair) -> dict[int, int]:
        """Counts of the tokens that have followed a pair; the latest stands last."""
        here = self.counts.get(key, {})
        known = {} if self.before is None else self.before.counts.get(key, {})
        if not known or not here:
            return here or known
        both = {token: count for token, count in known.items() if token not in here}
        return both | {token: count + known.get(token, 0) for token, count in here.items()}

    def likely(self, key: Pair, most: int) -> list[tuple[int, float]]:
        """The most frequent tokens behind a pair and their shares; of equals the latest first."""
        both = self.behind(key)
        whole = sum(both.values())
        ranked = sorted(enumerate(both.items()), key=lambda one: (-one[1][1], -one[0]))
        return [(token, count / whole) for _, (token, count) in ranked[:most]]

    def add(self, other: Trigrams, most: int) -> None:
        """Join another text's counts; of more than `most` pairs those seen last stay."""
        for key, found in other.counts.items():
            mine = self.counts.pop(key, {})
            for token, count in found.items():
                mine[token] = mine.pop(token, 0) + count
            self.counts[key] = mine
        while len(self.counts) > most:
            del self.counts[next(iter(self.counts))]


class LivingTrigrams:
    """Trigrams that live on from generation to generation.

    The rows of a batch learn apart; what they have learnt is put together when the next begins. Of
    `MOST_PAIRS` pairs the counts are kept.
    """

    def __init__(self) -> None:
        self._whole = Trigrams()
        self._new: list[Trigrams] = []

    def begin(self) -> None:
        """A generation begins: with all that was learnt before."""
        for learnt in self._new:
            self._whole.add(learnt, MOST_PAIRS)
        self._new = []

    def row(self) -> Trigrams:
        """Trigrams for a text that begins."""
        self._new.append(Trigrams(self._whole))
        return self._new[-1]


def pair(text: Sequence[int], place: int, above: int) -> Pair:
    """The pair that a token at a place is looked up by: `above` places before it, and the last.

    -1 stands for what would lie in front of the text.
    """
    return (
        text[place - above] if place >= above else -1,
        text[place - 1] if place >= 1 else -1,
    )


def best_first(
    likely: Likely, tail: list[int], above: int, nodes: int, depth: int, width: int
) -> list[Node]:
    """The tree of the likeliest continuations: a node's share is the product along its path.

    Args:
        likely: tokens behind a pair and their shares, such as `Trigrams.likely`.
        tail: end of the text, at least `above` tokens, or all of it.
        above: see `pair`.
        nodes, depth, width: most nodes, levels, and children of a node.

    Returns:
        Nodes, each behind its parent; of equals the one first found stands first.
    """
    out: list[Node] = []
    heap: list[tuple[float, int, int, tuple[int, ...]]] = []
    found = 0

    def expand(parent: int, path: tuple[int, ...], share: float) -> None:
        nonlocal found
        text = [*tail, *path]
        for token, part in likely(pair(text, len(text), above), width):
            heapq.heappush(heap, (-share * part, found, parent, (*path, token)))
            found += 1

    if depth:
        expand(-1, (), 1.0)
    while heap and len(out) < nodes:
        share, _, parent, path = heapq.heappop(heap)
        out.append((parent, path[-1]))
        if len(path) < depth:
            expand(len(out) - 1, path, -share)
    return out


@dataclass
class _Visited:
    """Node of the search: its token, children, and how it did."""

    token: int
    share: float
    parent: _Visited | None
    children: list[_Visited] | None = None
    visits: int = 0
    value: float = 0.0


C1, C2, TURNS = 32.0, 8.0, 150  # of the published search


def monte_carlo(
    likely: Likely, tail: list[int], above: int, nodes: int, depth: int, width: int
) -> list[Node]:
    """The tree of what a Monte-Carlo tree search visits most, as ADED has it.

    A child is chosen by its mean value and by `(C1 + ln((N + C2 + 1) / C2)) · share · √N / (1 + n)`
    of N visits of its parent and n of its own, one that was never visited first. The value of a
    visit is 1 and the shares on the way to `depth`. The published roll-outs are drawn; here they
    take the likeliest token, so that the tree follows from the text. Arguments and result are those
    of `best_first`.
    """
    root = _Visited(-1, 1.0, None)
    known: dict[Pair, list[tuple[int, float]]] = {}

    def after(path: Sequence[int]) -> list[tuple[int, float]]:
        text = [*tail, *path]
        key = pair(text, len(text), above)
        if key not in known:
            known[key] = likely(key, width)
        return known[key]

    for _ in range(TURNS if depth else 0):
        node, path = root, list[int]()
        while node.children:
            node = max(node.children, key=_promise)
            path.append(node.token)
        if node.children is None and len(path) < depth:
            node.children = [_Visited(token, share, node) for token, share in after(path)]
        value, ahead = 1.0 + sum(_shares(node)), list(path)
        while len(ahead) < depth and (next_ := after(ahead)):
            ahead.append(next_[0][0])
            value += next_[0][1]
        at: _Visited | None = node
        while at is not None:
            at.visits, at.value = at.visits + 1, at.value + value
            at = at.parent
    ranked, queue = [], [root]
    while queue:
        below = queue.pop(0).children or []
        ranked += [child for child in below if child.visits]
        queue += below
    ranked.sort(key=lambda one: -one.visits)  # parents are visited at least as often
    chosen = ranked[:nodes]
    places = {id(one): n for n, one in enumerate(chosen)}
    return [(places.get(id(one.parent), -1), one.token) for one in chosen]


def _promise(node: _Visited) -> float:
    assert node.parent is not None
    if not node.visits:
        return math.inf
    whole = node.parent.visits
    wide = C1 + math.log((whole + C2 + 1) / C2)
    return node.value / node.visits + wide * node.share * math.sqrt(whole) / (1 + node.visits)


def _shares(node: _Visited) -> list[float]:
    out: list[float] = []
    while node.parent is not None:
        out.append(node.share)
        node = node.parent
    return out
