"""Runs of draft tokens that are one of the target's, as many as are seen (OmniDraft's cache)."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection

Run = tuple[int, ...]
LONGEST = 8  # tokens of a run; drafts are rarely longer


class RunCache:
    """A cache of runs, by the tokens that they begin with; those seen last stay.

    Args:
        most: runs that are kept.

    Attributes:
        runs: the target's token that each run is, by run; the one seen last stands last.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.runs: OrderedDict[Run, int] = OrderedDict()
        self._next: dict[Run, Counter[int]] = {}  # by beginning, how many runs go on with a token

    def see(self, run: Run, token: int) -> None:
        """Keep a run of two tokens to `LONGEST`; others are none."""
        if not self.most or not 2 <= len(run) <= LONGEST:
            return
        if run not in self.runs:
            self._count(run, 1)
        self.runs[run] = token
        self.runs.move_to_end(run)
        if len(self.runs) > self.most:
            self._count(self.runs.popitem(last=False)[0], -1)

    def next(self, path: Run) -> Collection[int]:
        """Tokens with which some run goes on that begins with `path`; of (), all runs begin."""
        return self._next.get(path, ())

    def add(self, other: RunCache) -> None:
        """Take in all that another one has kept."""
        for run, token in other.runs.items():
            self.see(run, token)

    def _count(self, run: Run, by: int) -> None:
        for end in range(len(run)):
            found = self._next.setdefault(run[:end], Counter())
            found[run[end]] += by
            if not found[run[end]]:
                del found[run[end]]
            if not found:
                del self._next[run[:end]]


class LivingRuns:
    """Runs of two vocabularies, some of which live on from generation to generation.

    The rows of a batch learn apart; what they have seen is put together when the next begins.

    Args:
        run_of: of one of the target's tokens, the tokens of both vocabularies that spell it; fewer
            than two: none do.
    """

    def __init__(self, run_of: Callable[[int], Run]) -> None:
        self.run_of = run_of
        self._whole = RunCache(0)
        self._new: list[RunCache] = []

    def begin(self, most: int) -> None:
        """A generation begins, with `most` runs of all that was seen before."""
        whole = RunCache(most)
        for seen in (self._whole, *self._new):
            whole.add(seen)
        self._whole, self._new = whole, []

    def row(self, most: int) -> RunCache:
        """A cache of at most so many for a text that begins."""
        made = RunCache(most)
        made.add(self._whole)
        self._new.append(made)
        return made
