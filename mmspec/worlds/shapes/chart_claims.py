"""Reads the claims of a chart's description back, and tells which are true."""

from __future__ import annotations

import re

from .chart_texts import FRACTIONS, NEAR
from .charts import HIGHEST, PARTS, Chart
from .claims import DescriptionScore, sentences
from .vocabulary import COLORS, SHAPES
from .wording import CHARTS as PHRASES

_VALUES = {o: n for n in range(1, HIGHEST + 1) for o in PHRASES[f"value_{n}"]}
_COMPARISONS = {
    option: key in ("more", "larger")
    for key in ("more", "less", "larger", "smaller")
    for option in PHRASES[key]
}
_EXTREMES = {
    option: key in ("highest", "largest")
    for key in ("highest", "lowest", "largest", "smallest")
    for option in PHRASES[key]
}
_LOOSE = 0.02  # beyond `NEAR`, for what is said of a share


def score_chart(text: str, chart: Chart) -> DescriptionScore:
    """Score a chart's description by its claims, and cover parts whose value or share is told."""
    reader = _ChartReader(chart)
    told = [part for part in sentences(text) if part not in PHRASES["ending"]]
    verdicts = [verdict for sentence in told for verdict in reader.read(sentence)]
    return DescriptionScore(len(verdicts), sum(verdicts), len(reader.told) / len(chart.labels))


class _ChartReader:
    """State of a reader of a chart's description."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.told: set[str] = set()

    def read(self, sentence: str) -> list[bool]:
        """Judge each claim of a sentence; a sentence that says nothing is false."""
        chart, text = self.chart, sentence.lower()
        words = re.findall(r"\w+", text)
        names = SHAPES if chart.form == "line" else tuple(COLORS)
        labels = [word for word in words if word in names]
        values = [_VALUES[word] for word in words if word in _VALUES]
        if any(label not in chart.labels for label in labels):
            return [False]
        if "line" in words and "chart" not in words and not labels:
            return [chart.line in words]
        if "left" in words:
            return [values == list(chart.values)]
        if not labels:
            return self._counted(words, values)
        comparison = next((o for o in _COMPARISONS if o in text), None)
        if len(labels) == 2:
            one, other = labels
            if comparison:
                return [(chart.value(one) > chart.value(other)) == _COMPARISONS[comparison]]
            place = chart.labels.index(other) + 1  # slices are drawn clockwise
            return [chart.labels[place % len(chart.labels)] == one]
        return self._about(words, labels[0], values)

    def _counted(self, words: list[str], values: list[int]) -> list[bool]:
        chart = self.chart
        if "above" in words and len(values) == 2:
            number, limit = values
            return [number == sum(value > limit for value in chart.values)]
        if not values or PARTS[chart.form] + "s" not in words:
            return [False]
        return [values[0] == len(chart.values), chart.form in words]

    def _about(self, words: list[str], label: str, values: list[int]) -> list[bool]:
        chart = self.chart
        for word in words:
            if word in _EXTREMES:
                return [chart.ordered()[0 if _EXTREMES[word] else -1] == label]
        if values and chart.form != "pie":  # "one third" is no value
            self.told.add(label)
            return [chart.value(label) == values[0]]
        for fraction, share in FRACTIONS.items():
            if fraction in words:
                self.told.add(label)
                gap = chart.share(label) - share
                if "about" in words:
                    return [abs(gap) <= NEAR + _LOOSE]
                return [(gap if "more" in words else -gap) > NEAR - _LOOSE]
        return [False]
