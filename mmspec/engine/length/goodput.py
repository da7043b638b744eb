"""Goodput: draft as far as expected tokens per second still grow (SmartSpec, Liu et al. 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..draft import Context, Draft, Verdict

_PRIOR, _WEIGHT = 0.7, 2.0  # what is thought of position 1, and how many rounds that outweighs
_DECAY = 0.95  # of what a row has seen, per round
_PATIENCE = 8  # rounds of plain decoding before the first new try
_FADE = 0.995  # of what earlier generations have seen of a position, every time it is judged
_HICCUP = 3.0  # a round that takes so many times what it should counts for no more
_DRIFT = 0.75  # of a surprise is put down to the machine, which is the same for all lengths


@dataclass
class Experience:
    """Experience that generations leave for the next ones.

    Attributes:
        seconds: of a round that drafts 0, 1, 2, … tokens, drafting included; measured by the caller
            for a start, and kept up to date with the rounds as they go.
        stood, judged: by draft position, how often it stood, and was judged.
    """

    seconds: list[float]
    stood: list[float] = field(default_factory=list)
    judged: list[float] = field(default_factory=list)

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


class GoodputLength:
    """Chooses γ per row to maximize E[tokens] / seconds; 0 where drafting does not pay.

    How often position i stands, given that those before it did, is a running average of the row's
    own rounds, so E[tokens] = 1 + a_1 + a_1 a_2 + … A row that drafts nothing learns nothing: it
    tries again after a number of rounds that doubles with every failure.

    Args:
        experience: of earlier generations; the largest γ is the last that it has seconds for. It
            goes on to learn, but what rows think of positions at the start of a generation is
            settled then: of their neighbours they share the clock alone.
        news: weight of a round's seconds in what such rounds are thought to take. Above 0, lengths
            follow the clock: the same seed may give another sample, of the same law.
    """

    def __init__(self, experience: Experience, news: float = 0.2) -> None:
        self.experience, self.news = experience, news
        self.most = len(experience.seconds) - 1
        self._rows: list[_RowGoodput] = []
        self._stands: list[float] = []  # thought of positions as the generation began

    def start(self, rows: int) -> None:
        self._stands = self.experience.stands()
        self._rows = [_RowGoodput(self._stands) for _ in range(rows)]

    def seat(self, context: Context, rows: list[int]) -> None:
        for row in rows:
            self._rows[row] = _RowGoodput(self._stands)

    def budget(self) -> list[int]:
        return [row.choose(self.experience.seconds) for row in self._rows]

    def observe(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        known, seconds = self.experience, self.experience.seconds
        for row, n, kept in zip(self._rows, context.reached, context.accepted, strict=True):
            row.learn(n, kept)
            for position in range(min(kept + 1, n, self.most)):
                known.stood[position] = _FADE * known.stood[position] + (position < kept)
                known.judged[position] = _FADE * known.judged[position] + 1
        n = draft.levels  # filling is scored as well
        if context.seconds and n <= self.most:
            surprise = self.news * math.log(min(context.seconds / seconds[n], _HICCUP))
            drift = math.exp(_DRIFT * surprise)
            seconds[:] = [s * drift for s in seconds]
            seconds[n] *= math.exp(surprise) / drift


class _RowGoodput:
    """Acceptance and times that one row has seen."""

    def __init__(self, stands: list[float]) -> None:
        self.stands = stands  # thought before anything is seen
        self.stood, self.judged = [0.0] * len(stands), [0.0] * len(stands)
        self.idle, self.patience = 0, _PATIENCE

    def choose(self, seconds: list[float]) -> int:
        best, rate = 0, 1 / seconds[0]
        tokens = reach = 1.0
        surprise = 1.0
        told = zip(self.stands, self.stood, self.judged, strict=True)
        for n, (thought, stood, judged) in enumerate(told, start=1):
            # what positions in front have shown moves the ones that were not seen as well
            stands = (stood + _WEIGHT * min(1.0, thought * surprise)) / (judged + _WEIGHT)
            surprise = stands / thought if thought else 1.0
            reach *= stands
            tokens += reach
            if tokens / seconds[n] > rate:
                best, rate = n, tokens / seconds[n]
        if best:
            return best
        self.idle += 1
        return 1 if self.idle > self.patience else 0

    def learn(self, drafted: int, accepted: int) -> None:
        if not drafted:
            return
        for position in range(min(accepted + 1, drafted, len(self.stood))):
            stood = float(position < accepted)
            self.stood[position] = _DECAY * self.stood[position] + stood
            self.judged[position] = _DECAY * self.judged[position] + 1
        if self.idle:
            self.patience = _PATIENCE if accepted else 2 * self.patience
            self.idle = 0
