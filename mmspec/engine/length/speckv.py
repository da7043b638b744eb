"""Lengths by entropy and confidence of earlier drafts (SpecKV, Shukla 2026), with their cost."""

from __future__ import annotations

from ..draft import Context, Draft, Verdict
from .goodput import Experience, GoodputLength
from .signals import Regression, Signals, signals_of


class SpecKvLength(GoodputLength):
    """`GoodputLength` whose rows expect of a draft what the laws of the one before it say.

    The published policy predicts the share α of a draft that stands and takes the γ of largest
    α γ + 1, which has no cost: tokens a round grow with γ, whatever stands. This one maximizes
    (1 + Σ_{i ≤ γ} Π_{j ≤ i} a_j) / seconds of a round, like `GoodputLength`. How compressed the
    target is comes in by these seconds, which are measured.

    The paper looks at the draft whose length it chooses. To cut a draft because of what was drawn
    changes the law of the output, so here the draft before is looked at. Each row learns from its
    own drafts, and begins with what earlier generations have learnt.

    Args:
        experience, news: see `GoodputLength`.
    """

    def start(self, rows: int) -> None:
        self._known = self.experience.signals.copied()  # as the generation began
        super().start(rows)

    def _new_row(self) -> _RowSignals:
        return _RowSignals(self._known.copied(), self.most)

    def observe(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        super().observe(context, draft, verdict)
        for row, told in zip(self._rows, signals_of(draft), strict=True):
            assert isinstance(row, _RowSignals)
            row.signals = told or row.signals


class _RowSignals:
    """Acceptance that the laws of one row's last draft promise."""

    def __init__(self, regression: Regression, most: int) -> None:
        self.regression, self.most = regression, most
        self.signals: Signals | None = None

    def expected(self) -> list[float]:
        """Tokens of a round that drafts 0, 1, 2, … of them."""
        tokens, reach = [1.0], 1.0
        for position in range(self.most):
            reach *= self.regression.stands(self.signals, position)
            tokens.append(tokens[-1] + reach)
        return tokens

    def learn(self, judged: int, accepted: int, experience: Experience) -> None:
        for position in range(min(judged, self.most)):
            for known in (self.regression, experience.signals):
                known.learn(self.signals, position, position < accepted)
