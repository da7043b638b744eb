"""Account of what drafts have saved and cost, in seconds against plain decoding.

Trying drafts where they lose is paid from the account: of all seconds a small share may go to it,
and a few plain rounds may be owed. So drafting is explored without ever being much slower than
plain decoding, as a conservative bandit explores (Wu et al. 2016).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapreplace

SHARE = 0.01  # of all seconds, that drafts may lose
OWED = 3.0  # plain rounds that tries may owe besides, and that may be saved up
HICCUP = 3.0  # a round that takes so many times what it should counts for no more
_FADE = 0.97  # of what rounds of drafts have brought, with every further one
_CALLS = 0.9  # the same of calls
_NEWS = 0.15  # least weight of a plain round in what such rounds are thought to take
_NEAR = 1.5  # rows that differ by no larger a factor tell of each other
_ROWS = 64  # numbers of rows that are kept, the latest ones


@dataclass
class PlainSeconds:
    """Seconds of a plain round, by the rows that run: T(n), as measured.

    Between numbers of rows that were seen it is linear, and beyond them it goes on so, but no round
    of more rows takes less, and none takes more than in proportion to its rows. Where one number
    alone was seen, half of its seconds are thought to grow with the rows.
    """

    known: dict[int, tuple[float, int]] = field(default_factory=dict)
    _at: dict[int, float] = field(default_factory=dict, repr=False, compare=False)

    def learn(self, rows: int, seconds: float) -> None:
        """Learn what a round took, per token of a row."""
        self._at.clear()
        mean, count = self.known.pop(rows, (seconds, 0))
        seconds = min(max(seconds, mean / HICCUP), mean * HICCUP)
        weight = max(1 / (count + 1), _NEWS)
        self.known[rows] = mean + weight * (seconds - mean), count + 1
        while len(self.known) > _ROWS:
            del self.known[next(iter(self.known))]

    def knows(self, rows: int) -> bool:
        """True if about so many rows were seen often enough."""
        return any(
            count > 1 and rows <= _NEAR * n and n <= _NEAR * rows
            for n, (_, count) in self.known.items()
        )

    def at(self, rows: int) -> float:
        """Seconds of a round; 0 if nothing is known."""
        if rows not in self._at:
            self._at[rows] = self._between(rows)
        return self._at[rows]

    def _between(self, rows: int) -> float:
        seen = sorted(self.known)
        if not seen:
            return 0.0
        place = bisect_left(seen, rows)
        if place < len(seen) and seen[place] == rows:
            return self.known[rows][0]
        nearest = min(seen, key=lambda n: max(n / rows, rows / n))
        flat, steep = self.known[nearest][0], self.known[nearest][0] * rows / nearest
        if len(seen) == 1:
            return (flat + steep) / 2
        low, high = seen[max(0, min(place, len(seen) - 1) - 1) :][:2]
        (below, _), (above, _) = self.known[low], self.known[high]
        line = below + (above - below) * (rows - low) / (high - low)
        return min(max(line, min(flat, steep)), max(flat, steep))

    def of(self, tokens: Sequence[int], at_once: int | None = None) -> float:
        """Seconds of plain decoding for samples of so many tokens, so many in rows at a time."""
        ends = [0] * min(len(tokens), at_once or len(tokens))
        for count in tokens:
            heapreplace(ends, ends[0] + count)
        total, before, running = 0.0, 0, len(ends)
        for end in sorted(ends):
            total += (end - before) * self.at(running) if end > before else 0.0
            before, running = end, running - 1
        return total


@dataclass
class Gain:
    """Speed-up over plain decoding: seconds that it would have taken, over those that drafts took.

    The latest count most.
    """

    worth: float = 0.0
    spent: float = 0.0

    @property
    def rate(self) -> float:
        """The speed-up; 0 if nothing is known."""
        return self.worth / self.spent if self.spent else 0.0

    def learn(self, worth: float, spent: float, fade: float = _FADE) -> None:
        """Learn of a round, or of a call."""
        self.worth, self.spent = fade * self.worth + worth, fade * self.spent + spent


def octave(rows: int) -> int:
    """Numbers of rows that are told apart: 1, 2, 3–4, 5–8, …"""
    return (rows - 1).bit_length()


@dataclass
class Ledger:
    """Experience of one method on one machine, for sizes of drafts ("arms") by number.

    Every octave of rows has a balance. It grows by what drafts save and by `SHARE` of all seconds,
    and shrinks by what they lose. It is never above `owed` plain rounds, so that old merits do not
    pay for new losses; below −`owed` there are no tries, and below −2 · `owed` no drafts at all. So
    the rounds of an octave, which took S seconds, the longest draft's R of them, wrote what plain
    rounds of T write in P seconds, with

        S ≤ P + SHARE · S + 2 · owed · T + R

    from the start on, and with 3 · owed from any later time on: what is lost against plain decoding
    is 1 % of the time, and a constant that is paid once and not in each call. What a drafter reads
    of the prompts of one call is added to R, since it is charged when the call is over. The first
    round that drafts at all is left out of account, since what is done for the first time is slow;
    its drafts are short.

    Attributes:
        owed: plain rounds.
        plain: seconds of plain rounds.
        rounds: gain by arm and octave, of rounds in which it drafted.
        calls: gain by arm and octave, of whole calls: with what the drafter reads of the prompt,
            with rounds that were left plain, and with rows that end at different times.
        balances: seconds by octave.
        begun: arms that have drafted.
        since: by octave, rounds of drafts since plain ones were timed.
    """

    owed: float = OWED
    plain: PlainSeconds = field(default_factory=PlainSeconds)
    rounds: dict[tuple[int, int], Gain] = field(default_factory=dict)
    calls: dict[tuple[int, int], Gain] = field(default_factory=dict)
    balances: dict[int, float] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)
    since: dict[int, int] = field(default_factory=dict)

    def earn(self, rows: int, seconds: float, saved: float = 0.0) -> None:
        """Enter seconds that were spent, and those that drafts saved; below 0 they lost some."""
        size, most = octave(rows), self.owed * self.plain.at(rows)
        self.balances[size] = min(self.balances.get(size, 0.0) + SHARE * seconds + saved, most)

    def may_draft(self, rows: int, paid: bool = False) -> bool:
        """True unless as much is owed as may be, by drafts that have `paid` before or by others."""
        most = (2 if paid else 1) * self.owed * self.plain.at(rows)
        return self.balances.get(octave(rows), 0.0) >= -most

    def learn_call(self, arm: int, rows: int, worth: float, spent: float, before: float) -> None:
        """Learn of a whole call, in front of which the balance was `before`.

        Rows that end one after the other save less than their rounds told.
        """
        size = octave(rows)
        self.calls.setdefault((arm, size), Gain()).learn(worth, spent, _CALLS)
        told = self.balances.get(size, 0.0)
        self.balances[size] = min(told, before + SHARE * spent + worth - spent)

    def gain(self, kind: dict[tuple[int, int], Gain], arm: int, rows: int) -> Gain | None:
        """Gain of an arm with so many rows, or with the nearest number that tells of it.

        Drafts pay the less the more rows there are: what pays with more pays here, and what does
        not with fewer does not here. If neither is known it is None.
        """
        size = octave(rows)
        seen = sorted((at for one, at in kind if one == arm), key=lambda at: abs(at - size))
        for at in seen:
            found = kind[arm, at]
            if at == size or (found.rate > 1) == (at > size):
                return found
        return None
