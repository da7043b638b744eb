"""The figures: what they hold, that names are text, and that colours are the page's."""

from __future__ import annotations

import json
import re
import statistics
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from mmspec.eval import report as package
from mmspec.eval.report import plots
from mmspec.eval.report.figure import figure, methods_on_y
from mmspec.eval.report.frontier import calls_frontier, frontier
from mmspec.eval.report.labels import in_lines, place_labels
from mmspec.eval.report.samples import read_samples
from mmspec.eval.report.svg import GRID, INK, MUTED, VARIABLES
from mmspec.eval.schema import Report

CSS = (Path(package.__file__).parent / "page.css").read_text()


def drawn(folder) -> dict[str, str]:
    report = Report.read(folder)
    found = {
        "frontier": frontier(report),
        "calls": calls_frontier(report),
        "acceptance": plots.acceptance(report),
        "latency": plots.latency(report),
        "throughput": plots.throughput(report),
        "speedups": plots.speedups(report, read_samples(folder)),
    }
    return {name: svg for name, svg in found.items() if svg is not None}


def texts(svg: str) -> list[str]:
    root = ET.fromstring(svg.replace("xlink:href", "href"))
    return ["".join(e.itertext()) for e in root.iter() if e.tag == "text"]


def test_every_figure_names_its_methods(finished):
    report = Report.read(finished)
    svgs = drawn(finished)
    shown = {
        "frontier": list(report.methods),
        "calls": ["plain", "draft", "sjd", "scd", "lenient"],
        "acceptance": ["draft", "sjd", "scd", "lenient"],
        "latency": list(report.methods),
        "throughput": ["plain", "draft", "sjd", "scd", "lenient"],
        "speedups": [name for name in report.methods if name != "plain"],
    }
    assert list(svgs) == list(shown)
    for name, methods in shown.items():
        assert {text for text in texts(svgs[name]) if text in report.methods} == set(methods), name


def test_latency_says_the_sums(finished):
    report = Report.read(finished)
    sums_shown = [re.fullmatch(r"(\d\.\d+) s", text) for text in texts(drawn(finished)["latency"])]
    said = [float(match[1]) for match in sums_shown if match]
    sums = [sum(row.phase_seconds.values()) for row in report.methods.values()]
    assert said == pytest.approx(sums, abs=5e-4)


def test_ratios_are_paired_by_index_seed_and_prompt(finished):
    seconds: dict = {}
    for line in (finished / "samples.jsonl").read_text().splitlines():
        line = json.loads(line)
        if line["kind"] == "speed":
            seconds[line["method"], line["index"]] = line["decode_seconds"]
    report, samples = Report.read(finished), read_samples(finished)
    ratios = plots.paired_speedups(report, samples)
    assert list(ratios) == [name for name in report.methods if name != "plain"]
    for name, values in ratios.items():
        expected = [
            seconds["plain", i] / seconds[name, i] for i in range(report.methods[name].n_speed)
        ]
        assert values == pytest.approx(expected)
        assert statistics.median(values) == pytest.approx(report.methods[name].speedup_median)
    samples.speed["scd"].popitem()
    assert len(plots.paired_speedups(report, samples)["scd"]) == len(ratios["scd"]) - 1


def test_a_long_name_stands_on_several_lines_within_the_figure():
    long = "draft[target_compressor=draft-attention,target_cache=speckv]@greedy"
    lines = in_lines(long).split("\n")
    assert "".join(lines) == long
    assert lines == ["draft[", "target_compressor=draft-attention,", "target_cache=speckv]@greedy"]
    assert in_lines("draft[target_cache=speckv]@greedy") == "draft[target_cache=speckv]@greedy"
    assert plots.lines_of(["plain", long]) == 1 + 1.5  # lines of room on an axis
    with figure("y", 3) as (_, axes):
        methods_on_y(axes, ["plain", long])
        assert [tick.get_text() for tick in axes.get_yticklabels()] == ["plain", "\n".join(lines)]
    points = {long: (0.5, 0.5), "plain": (1.0, 1.0), "sjd": (0.0, 0.0)}
    with figure("x", 3.7) as (canvas, axes):
        axes.plot(*zip(*points.values(), strict=True), "o")
        place_labels(canvas, axes, points, [], dict.fromkeys(points, INK))
        frame = canvas.bbox
        for text in axes.texts:
            box = text.get_window_extent()
            assert frame.x0 <= box.x0 < box.x1 <= frame.x1, text.get_text()


def test_labels_do_not_cover_each_other_or_the_points():
    with figure("test", 3.0) as (canvas, axes):
        points = {f"method {i}": (1 + 0.02 * i, 0.5 + 0.001 * i) for i in range(4)}
        axes.plot(*zip(*points.values(), strict=True), "o")
        axes.set_xlim(0, 2)
        axes.set_ylim(0, 1)
        place_labels(canvas, axes, points, [], dict.fromkeys(points, INK))
        renderer = canvas.canvas.get_renderer()
        boxes = [text.get_window_extent(renderer) for text in axes.texts]
        assert [text.get_text() for text in axes.texts] == list(points)
        for i, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[:i])
            assert not any(box.contains(*axes.transData.transform(p)) for p in points.values())


@pytest.mark.parametrize("name", ["$x_1$ <b>&", 'id="a" #1c2128', "url(#a)"])
def test_names_are_text(run, name):
    report = Report.read(run)
    report.methods = {name if n == "scd" else n: row for n, row in report.methods.items()}
    for svg in (frontier(report), plots.acceptance(report), plots.latency(report)):
        assert svg is not None
        assert name in texts(svg)


def test_colours_and_font_are_the_page_s(finished):
    for name, svg in drawn(finished).items():
        bare = re.sub(r"var\(--[a-z0-9-]+, #[0-9a-f]{6}\)", "", svg)
        assert not re.findall(r"(?:fill|stroke): #", bare), name
        assert "DejaVu" not in svg
        assert "<style" not in svg
        assert "<metadata" not in svg
        assert svg.startswith('<svg role="img" aria-label="')


def test_the_style_sheet_sets_every_colour_for_light_and_dark():
    light, _, dark = CSS.partition("@media (prefers-color-scheme: dark)")
    assert len(set(VARIABLES)) == 3 + 9 + 9
    assert {INK, MUTED, GRID} <= set(VARIABLES)
    for color, variable in VARIABLES.items():
        assert f"{variable}: {color};" in light
        assert re.search(rf"{variable}: #[0-9a-f]{{6}};", dark)
