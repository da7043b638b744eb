"""`report.md` says what `report.json` holds."""

from __future__ import annotations

import re

import pytest

from mmspec.eval.report.pages import to_markdown
from mmspec.eval.schema import Report


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def table(text: str, caption: str) -> dict[str, dict[str, str]]:
    """Rows by name, cells by column, of the table under a caption that starts so."""
    lines = text[text.index(f"*{caption}") :].split("\n\n")[1].splitlines()
    columns = cells(lines[0])[1:]
    rows = (cells(line) for line in lines[2:])
    return {row[0].split(" (")[0]: dict(zip(columns, row[1:], strict=True)) for row in rows}


def numbers(cell: str) -> list[float]:
    """Numbers of a cell, true minus signs and thousands read."""
    found = re.findall(r"[−+]?\d[\d,]*\.?\d*", re.sub(r"(?<=\d)–(?=\d)", " ", cell))
    return [float(text.replace("−", "-").replace(",", "")) for text in found]


def test_the_headline_s_numbers_are_the_report_s(finished):
    report = Report.read(finished)
    rows = table(to_markdown(report), "Methods")
    assert list(rows) == list(report.methods)
    for name, row in report.methods.items():
        shown = rows[name]
        assert shown["contract"] == row.contract
        assert numbers(shown["n"]) == [row.n, row.n_speed]
        assert numbers(shown["NFE"]) == pytest.approx([row.nfe_per_sample], abs=0.05)
        calls = [row.mean_acceptance_length] if row.nfe_per_sample else []
        assert numbers(shown["tokens per call"]) == pytest.approx(calls, abs=0.005)
        assert numbers(shown["seconds"]) == pytest.approx([row.seconds_median], rel=0.005)
        speed = [] if row.speedup_median is None else [row.speedup_median, *row.speedup_ci95]
        assert numbers(shown["speed-up"]) == pytest.approx(speed, abs=0.005)
        ideal = [] if row.ideal_speedup is None else [row.ideal_speedup]
        assert numbers(shown["ideal"]) == pytest.approx(ideal, abs=0.005)
        share = [] if row.engine_efficiency is None else [100 * row.engine_efficiency]
        assert numbers(shown["efficiency"]) == pytest.approx(share, abs=0.5)
        assert numbers(shown["peak memory"]) == pytest.approx(
            [row.peak_memory_bytes / 1e6], abs=0.5
        )
        for metric, digits in (("geneval", 3), ("clip_score", 2)):
            quality = row.quality[metric]
            column = next(c for c in shown if c.replace("\\", "").startswith(metric))
            expected = [quality.value, *quality.ci95]
            if quality.difference_to_plain is not None:
                expected += [quality.difference_to_plain, *quality.difference_ci95]
            text = shown[column].removesuffix(quality.verdict)
            assert numbers(text) == pytest.approx(expected, abs=0.5 * 10**-digits + 1e-9)
            assert shown[column].endswith(quality.verdict)


def test_parts_phases_and_throughput_are_the_report_s(finished):
    report = Report.read(finished)
    text = to_markdown(report)
    parts, phases = table(text, "geneval by task"), table(text, "Milliseconds per sample")
    batches, places = table(text, "Output tokens"), table(text, "Share of drafted")
    for name, row in report.methods.items():
        quality = row.quality["geneval"]
        expected = [*quality.parts.values(), quality.value]
        assert [float(c) for c in parts[name].values()] == pytest.approx(expected, abs=5e-4)
        for phase, seconds in row.phase_seconds.items():
            assert numbers(phases[name][phase]) == pytest.approx([seconds * 1e3], rel=0.005)
        for batch, many in row.throughput.items():
            shown = numbers(batches[name][f"batch {batch}"])
            assert shown[0] == pytest.approx(many.tokens_per_second, abs=0.5)
            assert shown[1:2] == pytest.approx(
                [] if many.speedup_median is None else [many.speedup_median], abs=0.005
            )
        for place, cell in places.get(name, {}).items():
            shares = row.acceptance_by_position[int(place) - 1 :][:1]
            assert numbers(cell) == pytest.approx(shares, abs=0.005)


def test_marks_notes_settings_and_command(finished):
    report = Report.read(finished)
    text = to_markdown(report)
    assert "| plain (baseline) |" in text
    assert "| drafter-only (the sceptic's row) |" in text
    assert f"> - {report.notes[0]}" in text
    assert "| top\\_k | 100 |" in text
    assert f"```sh\n{report.command}\n```" in text


@pytest.mark.parametrize(
    ("for_reporting", "notes", "said"),
    [
        (True, [], None),
        (True, ["noisy"], "> **Read this before quoting a figure**"),
        (False, [], "> **Not for reporting: this run was cut short**"),
    ],
)
def test_the_warning(run, for_reporting, notes, said):
    report = Report.read(run)
    report.for_reporting, report.notes = for_reporting, notes
    text = to_markdown(report)
    assert (said in text) if said else ("> " not in text)


def test_the_lede_claims_no_more_than_the_interval(run):
    report = Report.read(run)
    assert "scd (exact) is 1.8" in to_markdown(report)
    for row in report.methods.values():
        if row.speedup_median is not None:
            row.speedup_ci95 = (0.99, row.speedup_median + 1)
    text = to_markdown(report)
    assert "scd (exact) is not surely faster: 1.8" in text
    assert "scd (exact) is 1.8" not in text


def test_a_fence_longer_than_any_in_the_command(run):
    report = Report.read(run)
    report.command = "echo ```` # <b>"
    assert "`````sh\necho ```` # <b>\n`````" in to_markdown(report)
