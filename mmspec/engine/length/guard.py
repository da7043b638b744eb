"""Drafts that are left out as soon as they do not pay, round by round, and made again later."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..draft import Context, Draft, Verdict
from ..protocols import DraftLength, seatable
from .ledger import HICCUP, Gain, Ledger, octave

_TRIAL = 4  # rounds of drafts before they are judged
_GROWN = 16  # the same where drafts get better from round to round
_RAMP = 3  # rounds in front of them, of drafts of 1, 2 and 4 tokens
_PRIOR = 8.0  # plain rounds that count for as much as what earlier calls have shown
_CARRIED = 1.5  # most that earlier calls say of drafts: the next text may be another
_PATIENCE = 8  # half of the plain rounds until drafts are tried again; doubled whenever they lose
_FRESH = 256  # rounds of drafts after which a plain round is timed again
_BESIDE = 64  # the same where drafts hardly pay
_HARDLY = 1.25  # times as fast


def now() -> float:
    """Seconds by the clock that rounds and calls are timed by."""
    return time.perf_counter()


class Guard:
    """Says of every round of a call whether it may draft, by what it takes and brings.

    Some rounds are plain, until their seconds are known for about so many rows. Then drafts are
    made as long as they bring more tokens a second than these, or the account pays for a trial, see
    `Ledger`. A trial begins with short drafts, and ends at once if a round takes longer than plain
    rounds for as many tokens as could have stood. It comes again after a number of plain rounds
    that doubles with every failure, and when half of the rows are over. Where the clock stands
    still, all rounds draft.

    Args:
        ledger: what earlier calls have shown; it goes on to learn.
        arm: number of this call's size of drafts; None: it is plain.
        grows: drafts get better from round to round, and a plain round makes them begin anew. So
            plain rounds are timed at the beginning of a call, and a trial is longer.
        trial: rounds of drafts before they are judged, with no shorter ones in front; None: as
            usual.

    Attributes:
        worth, spent: seconds that plain decoding would have taken for the call until now, and those
            that it took. The first round of a call, whose seconds may hold those of the prompt,
            counts for as much as a plain one would.
    """

    def __init__(
        self, ledger: Ledger, arm: int | None, grows: bool = False, trial: int | None = None
    ) -> None:
        self.ledger, self.arm, self.grows = ledger, arm, grows
        self.trial = trial or (_GROWN if grows else _TRIAL)
        self.worth = self.spent = 0.0
        self._gain: Gain | None = None  # of the drafts since they were last begun with
        self._short = 0 if trial else _RAMP
        self._on, self._run, self._idle, self._patience = True, 0, 0, _PATIENCE
        self._gave_up = 0  # rows that drafts were given up with
        self._usual = 0.0  # seconds of a round of drafts
        self._waited = 0.0  # seconds of rounds that emitted nothing, since one that did
        self._made, self._stands, self._lost, self._before = now(), False, False, 0.0
        self._read = 0.0  # seconds of reading that the account has not been charged

    # --- whether to draft -------------------------------------------------------------------------

    def drafts(self, rows: int) -> bool:
        """Decide whether the next round, in which so many rows run, drafts."""
        if self.arm is None or not rows:
            return False
        if self._gain is None:
            self._stands = now() == self._made
            self._before = self.ledger.balances.get(octave(rows), 0.0)
            self._begin(rows)
        if self._stands:
            return True
        if self._is_to_time(rows):
            return False
        if not self._on and self._returns(rows):
            self._on = True
        if self._on:
            lost = self._lost or (self._run >= self.trial and self._rate < 1)
            paid = self._run >= self.trial or (self._run >= 0 and self._rate > 1)
            if lost or not self.ledger.may_draft(rows, paid):
                self._on, self._idle, self._gave_up = False, 0, rows
                self._patience *= 2
        return self._on

    def _begin(self, rows: int) -> None:
        """Begin with what calls before this one have shown."""
        known = self.ledger.gain(self.ledger.rounds, self.arm or 0, rows)
        prior = _PRIOR * self.ledger.plain.at(rows)
        self._try(None if known is None else Gain(prior * min(known.rate, _CARRIED), prior))
        self._on, self._gave_up = self._rate >= 1, rows

    def _try(self, known: Gain | None) -> None:
        """Begin with drafts of which so much is known; None: nothing."""
        self._gain, self._lost = known or Gain(), False
        self._run = 0 if known else -self._short

    @property
    def most(self) -> int | None:
        """Most tokens that the next draft has; None: as many as somebody says."""
        return 2 ** (self._run + self._short) if self._run < 0 and not self._stands else None

    @property
    def _rate(self) -> float:
        return self._gain.rate if self._gain is not None and self._gain.spent else 1.0

    def _is_to_time(self, rows: int) -> bool:
        """True if the round is to be plain so that its seconds are known."""
        if not self.ledger.plain.knows(rows):
            return True
        if not self._on or (self.grows and self._run > 0):
            return False
        rounds = _BESIDE if self._rate < _HARDLY else _FRESH
        return self.ledger.since.get(octave(rows), 0) >= rounds

    def _returns(self, rows: int) -> bool:
        """True if drafts are tried again."""
        self._idle += 1
        if not self.ledger.may_draft(rows):
            return False
        if 2 * rows <= self._gave_up:
            self._patience = _PATIENCE
            self._begin(rows)
            if self._on:
                return True
        if self._idle <= self._patience:
            return False
        self._try(None)  # a trial is judged by itself
        return True

    # --- what rounds took -------------------------------------------------------------------------

    def told(
        self,
        rows: int,
        tokens: float,
        seconds: float,
        drafted: int,
        first: bool = False,
        left: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> None:
        """Hear of a round.

        Args:
            rows: that ran.
            tokens: that each of them wrote, the mean. Of 0, where all rows wait for what is still
                drafted or written, the seconds count with the next round that writes some.
            seconds: that it took.
            drafted: tokens ahead that drafts were asked for; 0: none were.
            first: it is the call's first.
            left: tokens that each of these rows may still write, before and after the round; None:
                others take the rows that are over, or all rows write as many.
        """
        ledger = self.ledger
        if not rows or seconds <= 0:
            return
        if tokens <= 0:
            self._waited += 0.0 if first else seconds
            return
        waited, self._waited = self._waited, 0.0
        if drafted and self.arm is not None:
            first = first or self.arm not in ledger.begun
            ledger.begun.add(self.arm)
            ledger.since[octave(rows)] = ledger.since.get(octave(rows), 0) + 1
        elif not (first or waited):  # a part of its tokens was written before
            ledger.plain.learn(rows, seconds / tokens)
            ledger.since[octave(rows)] = 0
        seconds += waited
        worth = plain = tokens * ledger.plain.at(rows)
        shortened = self._run < 0
        if left is not None:  # a row that is ahead of others ends sooner, and they do not
            worth = ledger.plain.of(left[0]) - ledger.plain.of(left[1])
        self._run += bool(drafted)
        if first or not drafted:
            seconds = worth if first else seconds
            self._enter(rows, seconds, seconds)
            return
        if self._usual:
            seconds = min(seconds, HICCUP * max(self._usual, plain))
        self._usual = (3 * self._usual + seconds) / 4 if self._usual and not shortened else seconds
        self._enter(rows, worth, seconds)
        if shortened:
            # a target may write more tokens where a draft falls than could have stood
            self._lost = seconds > max((1 + drafted) * ledger.plain.at(rows), plain)
        elif self._gain is not None and self.arm is not None:
            self._gain.learn(worth, seconds)
            known = ledger.rounds.setdefault((self.arm, octave(rows)), Gain())
            known.learn(worth, seconds)

    @contextmanager
    def unit(self, rows: int, tokens: int, drafts: bool) -> Iterator[None]:
        """Time what rows take for so many tokens each, and hear of it as of a round."""
        started = now()
        yield
        self.told(rows, tokens, now() - started, tokens if drafts else 0)

    def _enter(self, rows: int, worth: float, spent: float) -> None:
        self.worth, self.spent = self.worth + worth, self.spent + spent
        self.ledger.earn(rows, spent, worth - spent)

    @contextmanager
    def reading(self, rows: int, wait: Callable[[], None]) -> Iterator[None]:
        """Time what a drafter takes to read the prompts of so many rows.

        The account is charged at the end of the call, whose own drafts are paid for by then: what
        is read can't be saved any more. `wait` waits until the device is done.
        """
        wait()
        started = now()
        yield
        wait()
        if self.arm in self.ledger.begun:
            seconds = now() - started
            self.spent, self._read = self.spent + seconds, self._read + seconds

    def close(self, rows: int, tokens: Sequence[int] = (), at_once: int | None = None) -> None:
        """Learn what the whole call has brought.

        Args:
            rows: that it began with.
            tokens: of every sample: rows end at other times than those of plain decoding, which
                are made up for here. Empty: all rows end together.
            at_once: samples that had a row at a time; None: all.
        """
        if self.arm is None or not self.worth:
            return
        if tokens and rows > 1:
            self.worth = self.ledger.plain.of(tokens, at_once)
        self.ledger.learn_call(self.arm, rows, self.worth, self.spent, self._before)
        self._read = 0.0

    def leave(self, rows: int) -> None:
        """Charge the account with the reading of a call of so many rows that was not closed."""
        if self._read:
            self.ledger.earn(rows, self._read, -self._read)
            self._read = 0.0


class GuardedLength(DraftLength):
    """Passes on what a length policy says as long as a guard lets a round draft, else 0.

    The batch drafts or does not, so a row's sample may depend on its neighbours and on the clock;
    its law does not.

    Args:
        length: the policy.
        guard: of the call.
        prompted: seconds of the first round may hold those of reading the prompts.
    """

    def __init__(self, length: DraftLength, guard: Guard, prompted: bool = True) -> None:
        self.length, self.guard, self.prompted = length, guard, prompted
        self._over: list[bool] = []

    @property
    def wraps(self) -> tuple[DraftLength, ...]:
        """The policy."""
        return (self.length,)

    def start(self, rows: int) -> None:
        self._over, self._first = [False] * rows, self.prompted
        self.length.start(rows)

    def seat(self, context: Context, rows: list[int]) -> None:
        seatable(self.length).seat(context, rows)
        for row in rows:
            self._over[row] = False

    def budget(self) -> list[int]:
        self._started, budget = now(), self.length.budget()
        drafts = self.guard.drafts(self._over.count(False))
        most = self.guard.most if drafts else 0
        if most is not None:
            budget = [min(most, length) for length in budget]
        self._drafted = max(budget, default=0)
        return budget

    def observe(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        seconds = now() - self._started
        # a row may have been ended from outside, behind the round before
        over = [done and not n for done, n in zip(context.finished, context.emitted, strict=True)]
        over = [one or other for one, other in zip(self._over, over, strict=True)]
        running = [row for row, done in enumerate(over) if not done]
        emitted = [context.emitted[row] for row in running]
        after = [context.limit - context.base[row] for row in running]
        left = [n + more for n, more in zip(after, emitted, strict=True)], after
        room = max(left[0], default=0) > 1
        tokens = sum(emitted) / max(1, len(running))
        how = self._drafted if room else 0, self._first, left if context.samples is None else None
        self.guard.told(len(running), tokens, seconds, *how)
        self._over, self._first = list(context.finished), False
        self.length.observe(context, draft, verdict)
