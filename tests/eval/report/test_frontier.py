"""The frontiers: what is joined to what, where it lies, and what it is measured against."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from mmspec.eval.report import plots, tables
from mmspec.eval.report.figure import colors, markers
from mmspec.eval.report.frontier import _best, calls_frontier, frontier
from mmspec.eval.report.gallery import gallery
from mmspec.eval.report.parts import ends, families, swept
from mmspec.eval.report.samples import read_samples
from mmspec.eval.schema import Report

WINDOWS = (4, 8, 16, 32)
THRESHOLDS = (0.8, 0.4, 0.1)


@pytest.fixture
def report(run) -> Report:
    """The made-up run with `scd` at four windows, the values in any order, and `lenient` at three
    thresholds, the smaller the faster, with other settings beside."""
    report = Report.read(run)
    rows = dict(report.methods)
    scd, lenient = rows.pop("scd"), rows.pop("lenient")
    for i, window in enumerate(random.Random(5).sample(WINDOWS, 4)):
        rows[f"scd[window={window}]"] = _at(scd, "scd", "window", window, i)
    for i, threshold in enumerate(THRESHOLDS):
        name = f"lenient[rule=x,threshold={threshold:g}]"
        rows[name] = _at(lenient, "lenient[rule=x]", "threshold", threshold, i)
    report.methods = rows
    return report


def _at(row, family, knob, value, i):
    """A setting of its own speed, calls and quality."""
    quality = replace(row.quality["geneval"], value=0.5 - 0.03 * i)
    return replace(
        row,
        family=family,
        knob=knob,
        knob_value=value,
        speedup_median=row.speedup_median + 0.3 * i,
        nfe_per_sample=row.nfe_per_sample - 7 * i,
        quality={**row.quality, "geneval": quality},
    )


@pytest.fixture
def axes():
    """Draws a frontier and gives its axes, where data are numbers yet."""
    return lambda make, report: make(report, lambda canvas, *_: canvas.axes[0])


def lines(axes) -> dict[str, list[tuple[float, float]]]:
    """The labelled lines."""
    of = {line.get_label(): line for line in axes.lines}
    return {
        name: list(zip(*line.get_data(), strict=True))
        for name, line in of.items()
        if not name.startswith("_")
    }


@pytest.mark.parametrize("make", [frontier, calls_frontier])
def test_a_line_joins_one_family_in_the_order_of_its_knob(report, axes, make):
    rows = report.methods
    names = {
        "scd: window": [f"scd[window={w}]" for w in WINDOWS],
        "lenient[rule=x]: threshold": [f"lenient[rule=x,threshold={t:g}]" for t in THRESHOLDS],
    }

    def at(row):
        calls = rows["plain"].nfe_per_sample / row.nfe_per_sample
        x = row.speedup_median if make is frontier else calls
        return x, row.quality["geneval"].value

    found = lines(axes(make, report))
    assert set(found) == set(names)  # draft and sjd stand alone
    for label, members in names.items():
        expected = [at(rows[name]) for name in members]
        assert found[label] in (expected, expected[::-1])
        xs = [x for x, _ in expected]
        if label.startswith("scd"):  # the order of the knob is not that of the speeds
            assert sorted(xs) not in (xs, xs[::-1])


def test_a_setting_without_quality_is_no_point(report, axes):
    report.methods["scd[window=8]"].quality = {}
    points = lines(axes(frontier, report))["scd: window"]
    expected = [report.methods[f"scd[window={w}]"].speedup_median for w in WINDOWS if w != 8]
    assert [x for x, _ in points] in (expected, expected[::-1])


def test_points_are_labelled_by_the_knob_s_value(report, axes):
    for make, sceptic in ((frontier, ["drafter-only"]), (calls_frontier, [])):
        drawn = axes(make, report)
        written = [text.get_text() for text in drawn.texts]
        values = [*map(str, WINDOWS), *(f"{t:g}" for t in THRESHOLDS)]
        assert sorted(written) == sorted(["plain", "draft", "sjd", *sceptic, *values])
        tints = colors(report)
        assert len({tints[f"scd[window={w}]"] for w in WINDOWS}) == 1
        for text in drawn.texts:
            if text.get_text() == "32":
                assert text.get_color() == tints["scd[window=32]"]


def test_plain_s_level_and_the_margin(report, axes):
    plain = report.methods["plain"].quality["geneval"].value
    drawn = axes(frontier, report)
    level = [line for line in drawn.lines if list(line.get_ydata()) == [plain, plain]]
    assert len(level) == 1
    assert list(level[0].get_xdata()) == [0, 1]  # of the axes' width
    (band,) = drawn.patches
    assert band.get_label() == "plain to plain − 0.02"
    corners = band.get_extents().transformed(drawn.transData.inverted())
    assert (corners.y0, corners.y1) == pytest.approx((plain - 0.02, plain))
    report.settings["margin"] = None
    assert not axes(frontier, report).patches


def test_less_is_better_turns_the_axis_and_the_margin(report, axes):
    for row in report.methods.values():
        row.quality["geneval"].larger_is_better = False
    drawn = axes(frontier, report)
    plain = report.methods["plain"].quality["geneval"].value
    low, high = sorted(
        drawn.patches[0].get_extents().transformed(drawn.transData.inverted()).intervaly
    )
    assert (low, high) == pytest.approx((plain, plain + 0.02))
    assert drawn.yaxis_inverted()


def test_the_dashed_line_keeps_what_nothing_beats():
    points = [(1.0, 0.6), (2.0, 0.6), (2.0, 0.5), (3.0, 0.4), (0.5, 0.55), (1.5, 0.9)]
    assert _best(points, larger=True) == [(3.0, 0.4), (2.0, 0.6), (1.5, 0.9)]
    assert _best(points, larger=False) == [(3.0, 0.4)]


def test_calls_are_said_and_the_drafter_makes_none(finished):
    report = Report.read(finished)
    svg = calls_frontier(report)
    assert "times fewer target calls than plain" in svg
    assert f"scd: {256 / 77:.2f}" in svg
    assert "drafter-only" not in svg


def test_without_seconds_or_quality_there_is_nothing_to_draw(run):
    report = Report.read(run)
    for row in report.methods.values():
        row.speedup_median = row.speedup_ci95 = None
    assert frontier(report) is None
    assert calls_frontier(report) is not None
    for row in report.methods.values():
        row.quality = {}
    assert calls_frontier(report) is None


def test_families_keep_their_looks_and_their_order(report):
    found = families(report)
    assert list(found) == ["plain", "draft", "sjd", "drafter-only", "scd", "lenient[rule=x]"]
    assert list(swept(report)) == ["scd", "lenient[rule=x]"]
    scd, lenient = found["scd"], found["lenient[rule=x]"]
    assert scd in ([f"scd[window={w}]" for w in order] for order in (WINDOWS, WINDOWS[::-1]))
    assert lenient == [f"lenient[rule=x,threshold={t:g}]" for t in THRESHOLDS]
    looks = {(colors(report)[n], markers(report)[n]) for n in report.methods}
    assert len(looks) == len(found)


def test_where_all_settings_are_too_many_the_ends_are_shown(report, run):
    shown = ends(report)
    assert set(report.methods) - set(shown) == {
        *("scd[window=8]", "scd[window=16]", "lenient[rule=x,threshold=0.4]")
    }
    svg = plots.acceptance(report)
    assert "scd[window=4]" in svg
    assert "scd[window=32]" in svg
    assert "scd[window=8]" not in svg
    samples = read_samples(run)
    for window in WINDOWS:
        samples.quality[f"scd[window={window}]"] = samples.quality["scd"]
    pictured = {picture.method for picture in gallery(report, samples, run)[0].outputs}
    assert {"scd[window=4]", "scd[window=32]"} < pictured
    assert "scd[window=8]" not in pictured


def test_the_table_has_every_setting_beside_its_family(report):
    table = tables.sweeps(report)
    assert [row.head for row in table.rows] == [
        n for names in swept(report).values() for n in names
    ]
    plain = report.methods["plain"].nfe_per_sample
    for row in table.rows:
        of = report.methods[row.head]
        knob, calls, speed, quality = (cell.text for cell in row.cells)
        assert knob == f"{of.knob} {of.knob_value:g}"
        assert calls == f"{plain / of.nfe_per_sample:.2f}×"
        assert speed == f"{of.speedup_median:.2f}×"
        assert float(quality) == pytest.approx(of.quality["geneval"].value, abs=5e-4)


def test_without_a_sweep_there_is_no_such_table(finished):
    assert tables.sweeps(Report.read(finished)) is None


def test_many_settings_stay_legible(run, axes):
    """Eight families of four: no two labels, and no label and another's point, on each other."""
    report = Report.read(run)
    plain, row = report.methods["plain"], report.methods["lenient"]
    report.methods = {"plain": plain}
    for f in range(8):
        for i in range(4):
            speed = 1.1 + (1 + f * 0.4) * (i + 1) * 0.35
            value = 0.57 - 0.012 * (i + 1) ** 1.5 * (1 + 0.25 * ((f * 3) % 8))
            quality = replace(
                row.quality["geneval"], value=value, ci95=(value - 0.02, value + 0.02)
            )
            report.methods[f"m{f}[k={i}]"] = replace(
                row,
                family=f"m{f}",
                knob="k",
                knob_value=i,
                speedup_median=speed,
                speedup_ci95=(speed * 0.97, speed * 1.03),
                quality={"geneval": quality},
            )
    drawn = axes(frontier, report)
    renderer = drawn.figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in drawn.texts]
    assert len(boxes) == 33
    frame = drawn.get_window_extent(renderer)
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i])
        assert frame.x0 <= box.x0
        assert box.x1 <= frame.x1
    (legend,) = drawn.figure.legends
    named = [text.get_text() for text in legend.get_texts()]
    assert sorted(named) == sorted(["plain to plain − 0.02", *(f"m{f}: k" for f in range(8))])
    assert not re.search(r"\d{4,}", " ".join(t.get_text() for t in drawn.get_xticklabels()))
