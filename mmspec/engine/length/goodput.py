"""Goodput: draft as far as expected tokens per second still grow (SmartSpec, Liu et al. 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from ..draft import Context, Draft, Verdict
from .ledger import HICCUP
from .round_costs import Load
from .signals import Regression

_PRIOR, _WEIGHT = 0.7, 2.0  # what is thought of position 1, and how many rounds that outweighs
_DECAY = 0.95  # of what a row has seen, per round
PATIENCE = 8  # rounds of plain decoding before the first new try
_FADE = 0.995  # of what earlier generations have seen of a position, every time it is judged
_DRIFT = 0.75  # of a surprise is put down to the machine, which is the same for all lengths


@dataclass
class Experience:
    """Experience that generations leave for the next ones.

    Attributes:
        seconds: of a round that drafts 0, 1, 2, … tokens, drafting included; measured by the caller
            for a start, and kept up to date with the rounds as they go.
        stood, judged: by draft position, how often it stood, and was judged.
        signals: chance of a position by the laws of the draft before.
        windows: of a `SettledLength`, tokens and seconds of the latest generations with a window.
        chosen: how often it has chosen one of those that it knew.
        loads: of rounds by their load, see `RoundCosts`: how many were seen, and the mean logarithm
            of their seconds over those of `seconds`.
    """

    seconds: list[float]
    stood: list[float] = field(default_factory=list)
    judged: list[float] = field(default_factory=list)
    signals: Regression = field(default_factory=Regression)
    windows: dict[int, tuple[float, float]] = field(default_factory=dict)
    chosen: int = 0
    loads: dict[Load, tuple[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stood = self.stood or [0.0] * (len(self.seconds) - 1)
        self.judged = self.judged or [0.0] * (len(self.seconds) - 1)

    def stands(self) -> list[float]:
        """Chance that each position stands, given that those before it did.

        Where little was seen, a position is thought to be like the one before it.
        """
        stands, out = _PRIOR, []
        for stood, judged in zip(self.stood, self.judged, strict=True):
            stands = (stood + _WEIGHT * stands) / (judged + _WEIGHT)
            out.append(stands)
        return out


class RowAcceptance(Protocol):
    """Predicts how much of a row's drafts stands."""

    def expected(self) -> list[float]:
        """Tokens of a round that drafts 0, 1, 2, … of them."""

    def learn(self, judged: int, accepted: int, experience: Experience) -> None:
        """Learn how many tokens of a draft stood, of those that were judged.

        Later generations are let know. Behind a token that ended the row none was judged.
        """


class GoodputLength:
    """Chooses γ to maximize E[tokens] / seconds of a round; 0 where drafting does not pay.

    A round of a batch takes as long as its longest draft, so its rows draft alike: γ is what brings
    the most tokens of all rows a second. How often a row's position i stands, given that those
    before it did, is a running average of its own rounds, and E[tokens] = 1 + a_1 + a_1 a_2 + … A
    batch that drafts nothing learns nothing: it tries again after a number of rounds that doubles
    with every failure.

    Args:
        experience: of earlier generations; the largest γ is the last that it has seconds for. It
            goes on to learn, but what rows think of positions at the start of a generation is
            settled then.
        news: weight of a round's seconds in what such rounds are thought to take. Above 0, lengths
            follow the clock: the same seed may give another sample, of the same law.
    """

    def __init__(self, experience: Experience, news: float = 0.2) -> None:
        self.experience, self.news = experience, news
        self.most = len(experience.seconds) - 1
        self._rows: list[RowAcceptance] = []
        self._over: list[bool] = []
        self._stands: list[float] = []  # thought of positions as the generation began
        self._idle, self._patience = 0, PATIENCE

    def start(self, rows: int) -> None:
        self._stands = self.experience.stands()
        self._rows = [self._new_row() for _ in range(rows)]
        self._over = [False] * rows
        self._idle, self._patience = 0, PATIENCE

    def seat(self, context: Context, rows: list[int]) -> None:
        for row in rows:
            self._rows[row], self._over[row] = self._new_row(), False

    def _new_row(self) -> RowAcceptance:
        """What is thought of a row that has seen nothing."""
        return _RowGoodput(self._stands)

    def budget(self) -> list[int]:
        rows = zip(self._rows, self._over, strict=True)
        expected = [row.expected() for row, over in rows if not over]
        tokens = map(sum, zip(*expected, strict=True))
        rates = [t / s for t, s in zip(tokens, self.seconds, strict=bool(expected))]
        best = rates.index(max(rates)) if rates else 0
        if not best:
            self._idle += 1
            best = int(self._idle > self._patience)
        return [0 if over else best for over in self._over]

    @property
    def seconds(self) -> list[float]:
        """Duration of a round that drafts 0, 1, 2, … tokens, as known by now."""
        return self.experience.seconds

    def observe(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        seconds = self.seconds
        if self._idle and draft.levels:
            told = zip(context.emitted, self._over, strict=True)
            tried = [tokens for tokens, over in told if not over]
            pays = sum(tried) / len(tried) * seconds[0] > seconds[min(draft.levels, self.most)]
            self._idle, self._patience = 0, PATIENCE if pays else 2 * self._patience
        self._learn(context)
        n = draft.levels  # filling is scored as well
        if context.seconds and n <= self.most:
            surprise = self.news * math.log(min(context.seconds / seconds[n], HICCUP))
            drift = math.exp(_DRIFT * surprise)
            seconds[:] = [s * drift for s in seconds]
            seconds[n] *= math.exp(surprise) / drift

    def _learn(self, context: Context) -> None:
        """Learn how much of every row's draft stood, and which rows are over."""
        told = zip(self._rows, context.reached, context.accepted, context.emitted, strict=True)
        for row, n, kept, count in told:
            row.learn(min(n, kept + 1, count), kept, self.experience)
        self._over = list(context.finished)


class _RowGoodput:
    """Acceptance that one row has seen."""

    def __init__(self, stands: list[float]) -> None:
        self.stands = stands  # thought before anything is seen
        self.stood, self.judged = [0.0] * len(stands), [0.0] * len(stands)

    def expected(self) -> list[float]:
        """Tokens of a round that drafts 0, 1, 2, … of them."""
        tokens, reach, surprise = [1.0], 1.0, 1.0
        for thought, stood, judged in zip(self.stands, self.stood, self.judged, strict=True):
            # what positions in front have shown moves the ones that were not seen as well
            stands = (stood + _WEIGHT * min(1.0, thought * surprise)) / (judged + _WEIGHT)
            surprise = stands / thought if thought else 1.0
            reach *= stands
            tokens.append(tokens[-1] + reach)
        return tokens

    def learn(self, judged: int, accepted: int, experience: Experience) -> None:
        for position in range(min(judged, len(self.stood))):
            for known, fade in ((self, _DECAY), (experience, _FADE)):
                known.stood[position] = fade * known.stood[position] + (position < accepted)
                known.judged[position] = fade * known.judged[position] + 1
