"""Charts: what is drawn is read back from the pixels; questions and descriptions are true of it."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from mmspec.worlds.shapes.chart_claims import score_chart
from mmspec.worlds.shapes.chart_texts import NEAR, ask_chart, describe_chart
from mmspec.worlds.shapes.charts import FORMS, Chart, render_chart, sample_chart
from mmspec.worlds.shapes.vocabulary import COLORS, SHAPES

BAR = Chart("bar", ("red", "blue", "pink"), (3, 8, 5), "black", (140, 140, 140), False, 0.0)
LINE = Chart("line", ("star", "ring", "heart"), (2, 7, 4), "green", (140, 140, 140), True, 0.0)
PIE = Chart("pie", ("white", "brown", "blue"), (6, 3, 3), "black", (140, 140, 140), False, 30.0)


def pixels_of(picture, color):
    """Where a picture has a palette colour, antialiased rims left out."""
    return np.abs(picture.astype(int) - COLORS[color]).max(-1) < 24


def charts(form, number=40):
    rng = np.random.default_rng(3)
    return [sample_chart(rng, form, ("train", "held_out")[n % 2]) for n in range(number)]


def test_bars_have_the_height_of_their_values():
    for chart in charts("bar"):
        picture = render_chart(chart, 384)
        for color, value in zip(chart.labels, chart.values, strict=True):
            if color in ("black", "brown"):  # near the axes' and the digits' dark
                continue
            rows = np.flatnonzero(pixels_of(picture, color).sum(1) > 15)
            height = (rows[-1] - rows[0] + 1) / 384 / 0.078  # a unit is 0.078 of the side
            assert round(height) == value, (chart, color, height)


def test_slices_have_the_area_of_their_shares():
    for chart in charts("pie"):
        picture = render_chart(chart, 384)
        areas = {color: pixels_of(picture, color).sum() for color in chart.labels}
        for color, area in areas.items():
            assert area / sum(areas.values()) == pytest.approx(chart.share(color), abs=0.01)


def test_lines_pass_through_their_values():
    for chart in charts("line"):
        if chart.line in ("black", "brown"):
            continue
        drawn = pixels_of(render_chart(chart, 384), chart.line)
        step = 0.85 / len(chart.values)
        for n, value in enumerate(chart.values):
            column = round((0.13 + step * (n + 0.5)) * 384)
            rows = np.flatnonzero(drawn[:, column - 2 : column + 3].any(1))
            height = (0.84 - rows.mean() / 384) / 0.078
            assert round(height) == value, (chart, height)


def test_written_values_differ():
    """Digits tell charts of other values apart; those of values that are not written do not."""
    plain = render_chart(BAR)
    written = render_chart(Chart(**{**vars(BAR), "written": True}))
    assert not np.array_equal(plain, written)


def answered(chart, question):
    """The answer by a reader of its own."""
    words = re.findall(r"\w+", question.lower())
    names = SHAPES if chart.form == "line" else COLORS
    labels = [word for word in words if word in names]
    value = dict(zip(chart.labels, chart.values, strict=True))
    number = next((int(word) for word in words if word.isdigit()), None)
    if number is not None:
        return str(sum(v > number if "above" in words else v < number for v in chart.values))
    if not labels and {"many"} & {*words}:
        return str(len(chart.values))
    if not labels:
        top = {"highest", "tallest", "largest", "biggest"} & {*words}
        return (max if top else min)(value, key=value.get)
    if len(labels) == 1:
        parts = {"half": 1 / 2, "third": 1 / 3, "quarter": 1 / 4, "fifth": 1 / 5}
        part = next((parts[word] for word in words if word in parts), None)
        if part is None:
            return str(value[labels[0]])
        share = value[labels[0]] / sum(chart.values)
        assert abs(share - part) > NEAR
        return "yes" if share > part else "no"
    one, other = (value[label] for label in labels)
    if {"rise", "up"} & {*words}:
        assert chart.labels.index(labels[1]) == chart.labels.index(labels[0]) + 1
        return "yes" if other > one else "no"
    more = {"higher", "taller", "larger", "bigger"} & {*words}
    return "yes" if (one > other) == bool(more) else "no"


@pytest.mark.parametrize("form", FORMS)
def test_answers_are_true(form):
    rng = np.random.default_rng(5)
    answers = set()
    for chart in charts(form, 150):
        question = ask_chart(rng, chart)
        answers.add(question.answer)
        assert question.answer == answered(chart, question.text), (chart, question)
    assert len(answers) > 8


@pytest.mark.parametrize("form", FORMS)
def test_descriptions_are_true(form):
    rng = np.random.default_rng(7)
    texts = []
    for chart in charts(form, 80):
        text, nats = describe_chart(rng, chart)
        score = score_chart(text, chart)
        assert (score.truthfulness, score.coverage) == (1.0, 1.0), (chart, text)
        assert nats > 0
        texts.append((chart, text))
    others = [score_chart(text, chart) for (_, text), (chart, _) in itertools.pairwise(texts)]
    assert np.mean([score.truthfulness for score in others]) < 0.45
    for chart, text in texts:
        swapped = {chart.labels[0]: chart.labels[1], chart.labels[1]: chart.labels[0]}
        wrong = re.sub(r"\w+", lambda m, s=swapped: s.get(m[0], m[0]), text)
        if chart.form != "pie":
            assert score_chart(wrong, chart).truthfulness < 1


@pytest.mark.parametrize(
    ("chart", "text", "claims", "true"),
    [
        (BAR, "This is a bar chart with three bars.", 2, 2),
        (BAR, "This is a line chart with four bars.", 2, 0),
        (BAR, "The red bar stands at 3. The blue bar reaches eight.", 2, 2),
        (BAR, "The red bar stands at 4.", 1, 0),
        (BAR, "The green bar stands at 4.", 1, 0),
        (BAR, "The highest of all is the blue bar.", 1, 1),
        (BAR, "The pink bar is the lowest.", 1, 0),
        (BAR, "The pink bar is taller than the red bar.", 1, 1),
        (BAR, "Two of the bars are above 4.", 1, 1),
        (BAR, "Two bars lie above 5.", 1, 0),
        (LINE, "The line is green. The point at the ring has a value of 7.", 2, 2),
        (LINE, "The line is red.", 1, 0),
        (LINE, "From left to right the values are 2, 7 and 4.", 1, 1),
        (LINE, "From left to right the values are 2, 4 and 7.", 1, 0),
        (PIE, "The white slice makes up about half of the whole.", 1, 1),
        (PIE, "The blue slice takes more than one third of the chart.", 1, 0),
        (PIE, "Clockwise, the brown slice comes after the white slice.", 1, 1),
        (PIE, "Clockwise, the white slice comes after the brown slice.", 1, 0),
        (PIE, "That is all.", 0, 0),
        (PIE, "Slices are nice.", 1, 0),
    ],
)
def test_claims_by_hand(chart, text, claims, true):
    score = score_chart(text, chart)
    assert (score.claims, score.true) == (claims, true)
