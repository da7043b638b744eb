"""Goodput: draft as far as expected tokens per second still grow (SmartSpec, Liu et al. 2024)."""

from __future__ import annotations

from ..types import Context, Draft, Verdict

_PRIOR, _WEIGHT = 0.7, 2.0  # what is thought of position 1, and how many rounds that outweighs
_DECAY = 0.95  # of what was seen, per round
_PATIENCE = 8  # rounds of plain decoding before the first new try
_HICCUP = 3.0  # a round that takes so many times what it should counts for no more


class GoodputLength:
    """Chooses γ per row to maximize E[tokens] / seconds; 0 where drafting does not pay.

    How often position i stands, given that those before it did, is a running average of the row's
    own rounds, so E[tokens] = 1 + a_1 + a_1 a_2 + … A row that draws nothing learns nothing: it
    tries again after a number of rounds that doubles with every failure.

    Args:
        seconds: of a round that drafts 0, 1, 2, … tokens, drafting included. The caller measures
            them for a start; as rounds go by, the list is kept up to date. The largest γ is its
            last.
        news: weight of a round's seconds in what such rounds are thought to take. Above 0, lengths
            follow the clock: the same seed may give another sample, of the same law.
    """

    def __init__(self, seconds: list[float], news: float = 0.1) -> None:
        self.most, self.seconds, self.news = len(seconds) - 1, seconds, news
        self._rows: list[_Row] = []

    def start(self, rows: int) -> None:
        self._rows = [_Row(self.most) for _ in range(rows)]

    def budget(self) -> list[int]:
        return [row.choose(self.seconds) for row in self._rows]

    def observe(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        for row, n, kept in zip(self._rows, context.reached, context.accepted, strict=True):
            row.learn(n, kept)
        n = max(context.reached)
        if context.seconds and n <= self.most:
            seen = min(context.seconds, _HICCUP * self.seconds[n])
            self.seconds[n] += self.news * (seen - self.seconds[n])


class _Row:
    """What one row has seen."""

    def __init__(self, most: int) -> None:
        self.stood, self.judged = [0.0] * most, [0.0] * most
        self.idle, self.patience = 0, _PATIENCE

    def choose(self, seconds: list[float]) -> int:
        best, rate = 0, 1 / seconds[0]
        tokens = reach = 1.0
        stands = _PRIOR
        for n, (stood, judged) in enumerate(zip(self.stood, self.judged, strict=True), start=1):
            # where little was seen, a position is thought to be like the one before it
            stands = (stood + _WEIGHT * stands) / (judged + _WEIGHT)
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
        for position in range(min(accepted + 1, drafted)):
            stood = float(position < accepted)
            self.stood[position] = _DECAY * self.stood[position] + stood
            self.judged[position] = _DECAY * self.judged[position] + 1
        if self.idle:
            self.patience = _PATIENCE if accepted else 2 * self.patience
            self.idle = 0
