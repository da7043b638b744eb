"""Questions about charts, and long descriptions of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from .charts import FORMS, PARTS, Chart, Form
from .descriptions import SHORTEST
from .questions import Question, yes_or_no
from .vocabulary import COLORS, NUMBERS, SHAPES
from .wording import CHARTS as PHRASES
from .wording import Wording, pieces

WORDS = {*PARTS, *PARTS.values(), *(part + "s" for part in PARTS.values()), *COLORS, *SHAPES}
WORDS |= {*NUMBERS.values(), "the", "at", "more", "less", "than", "about", "above", "below", "five"}
FRACTIONS = {"half": 1 / 2, "third": 1 / 3, "quarter": 1 / 4, "fifth": 1 / 5}
NEAR = 0.03  # a share is "about" a fraction within it, and clearly more or less beyond it
_NUMBERS = ("none", "one", "two", "three", "four", "five")


def ask_chart(rng: np.random.Generator, chart: Chart) -> Question:
    """A question about a chart; half of those that take yes or no are answered yes."""
    asker = _ChartAsker(Wording(rng, PHRASES), chart)
    yes = bool(rng.random() < 0.5)
    while True:
        kinds = _KINDS[chart.form]
        question = kinds[int(rng.integers(len(kinds)))](asker, yes)
        if question:
            return question


def name(chart: Chart, label: str) -> str:
    """A part of a chart as it is called."""
    if chart.form == "line":
        return f"the point {{over}} the {label}"
    return f"the {label} {PARTS[chart.form]}"


class _ChartAsker:
    """Asks questions about a chart, one method for every sort."""

    def __init__(self, words: Wording, chart: Chart) -> None:
        self.words, self.chart = words, chart
        self.ordered = chart.ordered()

    def extreme(self, yes: bool) -> Question:
        top, low = ("largest", "smallest") if self.chart.form == "pie" else ("highest", "lowest")
        label = self.ordered[0 if yes else -1]
        return self._say("which", label, extreme="{" + (top if yes else low) + "}")

    def value(self, yes: bool) -> Question:
        label = self._label()
        return self._say("what_value", str(self.chart.value(label)), one=name(self.chart, label))

    def count_above(self, yes: bool) -> Question:
        limit = int(self.words.rng.integers(2, 9))
        n = sum(value > limit if yes else value < limit for value in self.chart.values)
        return self._say("count_above", str(n), side="above" if yes else "below", limit=str(limit))

    def count_parts(self, yes: bool) -> Question:
        return self._say("count_parts", str(len(self.chart.values)))

    def compare(self, yes: bool) -> Question | None:
        one, other = self._label(), self._label()
        if one == other:
            return None
        more = (self.chart.value(one) > self.chart.value(other)) == yes
        comparison = _comparison(self.chart, more)
        named = {"one": name(self.chart, one), "other": name(self.chart, other)}
        return self._say("compare", yes_or_no(yes), comparison=comparison, **named)

    def rises(self, yes: bool) -> Question | None:
        steps = itertools.pairwise(zip(self.chart.labels, self.chart.values, strict=True))
        fitting = [(a, b) for (a, before), (b, after) in steps if (after > before) == yes]
        if not fitting:
            return None
        a, b = fitting[int(self.words.rng.integers(len(fitting)))]
        return self._say("rises", yes_or_no(yes), one=f"the {a}", other=f"the {b}")

    def exceeds(self, yes: bool) -> Question | None:
        fitting = [
            (label, fraction)
            for label in self.chart.labels
            for fraction, part in FRACTIONS.items()
            if abs(gap := self.chart.share(label) - part) > NEAR and (gap > 0) == yes
        ]
        if not fitting:
            return None
        label, fraction = fitting[int(self.words.rng.integers(len(fitting)))]
        known = {"one": name(self.chart, label), "fraction": "{" + fraction + "}"}
        return self._say("fraction_is", yes_or_no(yes), **known)

    def _label(self) -> str:
        return self.chart.labels[int(self.words.rng.integers(len(self.chart.labels)))]

    def _say(self, key: str, answer: str, **known: str) -> Question:
        known = {"part": PARTS[self.chart.form], **known}
        return Question(self.words.sentence("{" + key + "}", known, end=""), answer)


_Sort = Callable[[_ChartAsker, bool], Question | None]
_BOTH: tuple[_Sort, ...] = (_ChartAsker.extreme, _ChartAsker.compare, _ChartAsker.count_parts)
_READ: tuple[_Sort, ...] = (_ChartAsker.value, _ChartAsker.value, _ChartAsker.count_above)
_KINDS: dict[Form, tuple[_Sort, ...]] = {
    "bar": (*_BOTH, *_READ),
    "line": (*_BOTH, *_READ, _ChartAsker.rises),
    "pie": (*_BOTH, _ChartAsker.exceeds, _ChartAsker.extreme),
}


def describe_chart(rng: np.random.Generator, chart: Chart) -> tuple[str, float]:
    """A description of 60 to 200 pieces, and the nats of the choices that led to it."""
    words = Wording(rng, PHRASES)
    known = {"part": PARTS[chart.form], "form": chart.form, "number": _NUMBERS[len(chart.values)]}
    said = [words.sentence("{opening}", known)]
    if chart.form == "line":
        said.append(words.sentence("{ink}", {"color": chart.line}))
    for label in words.order(chart.labels):
        said.append(_reading(words, chart, label))
    enough = int(rng.integers(SHORTEST + 5, 2 * SHORTEST))
    for template, facts in words.order(list(_more(chart)), 0.97):
        if sum(len(pieces(sentence)) for sentence in said) >= enough:
            break
        said.append(words.sentence(template, {**known, **facts}))
    said += [words.sentence("{ending}", {})] if words.chance(0.3) else []
    return " ".join(said), words.nats


def _reading(words: Wording, chart: Chart, label: str) -> str:
    """Sentence about a part: its value, or roughly its share."""
    one = name(chart, label)
    if chart.form != "pie":
        return words.sentence("{reading}", {"one": one, "value": f"{{value_{chart.value(label)}}}"})
    share = chart.share(label)
    fraction = min(FRACTIONS, key=lambda key: abs(FRACTIONS[key] - share))
    gap = share - FRACTIONS[fraction]
    amount = "about" if abs(gap) <= NEAR else "more than" if gap > 0 else "less than"
    return words.sentence("{part_of}", {"one": one, "amount": f"{amount} {{{fraction}}}"})


def _more(chart: Chart) -> Iterator[tuple[str, dict[str, str]]]:
    """Templates of what else is true, with their facts."""
    ordered = chart.ordered()
    top, low = ("largest", "smallest") if chart.form == "pie" else ("highest", "lowest")
    yield "{superlative}", {"one": name(chart, ordered[0]), "extreme": "{" + top + "}"}
    yield "{superlative}", {"one": name(chart, ordered[-1]), "extreme": "{" + low + "}"}
    for a, b in itertools.permutations(ordered, 2):
        more = chart.value(a) > chart.value(b)
        known = {"one": name(chart, a), "other": name(chart, b)}
        yield "{comparing}", {**known, "comparison": _comparison(chart, more)}
    if chart.form == "pie":
        for before, after in zip(chart.labels, (*chart.labels[1:], chart.labels[0]), strict=True):
            yield "{neighbour}", {"one": name(chart, after), "other": name(chart, before)}
        return
    listed = [str(value) for value in chart.values]
    yield "{row}", {"list": ", ".join(listed[:-1]) + f" and {listed[-1]}"}
    for limit in range(2, 9):
        n = sum(value > limit for value in chart.values)
        if n > 1:
            yield "{above}", {"number": _NUMBERS[n], "side": "above", "limit": str(limit)}


def _comparison(chart: Chart, more: bool) -> str:
    if chart.form == "pie":
        return "{larger}" if more else "{smaller}"
    return "{more}" if more else "{less}"


CHART_KINDS = tuple(f"{form}_chart" for form in FORMS)
