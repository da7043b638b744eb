"""Numbers and Markdown text as readers see them."""

from __future__ import annotations

import pytest

from mmspec.eval.report import format as f
from mmspec.eval.report.table import Cell, Row, Table, escape


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (f.fixed(1.955, 2), "1.96"),
        (f.fixed(-0.025, 3, sign=True), "−0.025"),
        (f.fixed(0.0231, 3, sign=True), "+0.023"),
        (f.fixed(-0.0001, 2, sign=True), "0.00"),
        (f.fixed(1234.5, 0), "1,234"),
        (f.fixed(None, 2, unit="×"), "–"),
        (f.fixed(float("nan"), 2), "–"),
        (f.significant(0.79), "0.790"),
        (f.significant(12.34), "12.3"),
        (f.significant(4321.0), "4,321"),
        (f.significant(0.0), "0.00"),
        (f.interval((1.762, 2.067), 2), "1.76–2.07"),
        (f.interval((-0.025, 0.0721), 3), "−0.025 to 0.072"),
        (f.interval(None, 2), ""),
        (f.share(0.858), "86 %"),
        (f.memory(812_000_000), "812 MB"),
        (f.memory(1_234_000_000), "1.23 GB"),
        (f.memory(12), "12 B"),
        (f.tiny(0.0), "0"),
        (f.tiny(3e-8), "< 1e-6"),
        (f.tiny(0.0341), "0.034"),
        (f.chance(0.00001), "< 0.0001"),
        (f.chance(0.0312), "0.0312"),
        (f.fact([1, None, True]), "1, –, yes"),
    ],
)
def test_numbers(shown, expected):
    assert shown == expected


@pytest.mark.parametrize(
    ("values", "digits"), [([0.57, 1.0], 3), ([31.4, None], 2), ([512.0, 3.0], 1), ([], 3)]
)
def test_decimals_follow_the_largest(values, digits):
    assert f.decimals(values) == digits


def test_a_table_in_markdown_and_in_a_terminal():
    cells = (Cell("0.59", "0.55–0.63", ("+0.02",), "no loss"), Cell())
    table = Table("A | B", ("method", "x", "y"), (Row("a_b|c", cells, "baseline"),))
    assert table.markdown().splitlines() == [
        r"*A \| B*",
        "",
        "| method | x | y |",
        "|---|---:|---:|",
        r"| a\_b\|c (baseline) | 0.59 (0.55–0.63), +0.02, no loss | – |",
    ]
    assert table.aligned().splitlines() == [
        "method            " + "x".ljust(32) + "  y",
        "a_b|c (baseline)  0.59 (0.55–0.63), +0.02, no loss  –",
    ]


def test_markdown_shows_user_text_as_it_is():
    assert escape("a\n<b>*c*`d`[e](f)") == r"a &lt;b&gt;\*c\*\`d\`\[e\](f)"


@pytest.mark.parametrize(
    ("verdict", "tone"),
    [("no loss", "good"), ("within 0.02", "good"), ("worse", "bad"), ("undecided", "open")],
)
def test_tone_of_a_verdict(verdict, tone):
    assert Cell("1", verdict=verdict).tone == tone
