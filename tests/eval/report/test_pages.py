"""The files beside the report, whole or not at all."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET

import pytest

from mmspec.errors import InputError
from mmspec.eval.report.pages import to_html, to_markdown, write_reports
from mmspec.eval.report.samples import sample_files
from mmspec.eval.schema import VERSION, Report

FIGURES = ("frontier.svg", "batch.svg", "calls.svg")


@pytest.mark.slow
def test_all_are_written_beside_the_report(run):
    report = Report.read(run)
    paths = write_reports(run)
    assert paths == [run / name for name in ("report.md", "report.html", *FIGURES)]
    assert paths[0].read_text() == to_markdown(report, FIGURES, sample_files(report, run))
    assert paths[1].read_text() == to_html(report, run)
    assert not list(run.glob("*.part"))


def test_the_figures_stand_alone_and_the_markdown_shows_them(run):
    write_reports(run)
    methods = Report.read(run).methods
    for name in FIGURES:
        text = (run / name).read_text()
        assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(" not in text  # colours of a page that is not there
        shown = [m for m, row in methods.items() if row.nfe_per_sample or name == "frontier.svg"]
        assert all(method in text for method in shown)
        assert f"({name})" in (run / "report.md").read_text()


def test_both_pages_link_the_samples_that_are_there(run):
    write_reports(run)
    pages = [(run / name).read_text() for name in ("report.md", "report.html")]
    links = sample_files(Report.read(run), run)
    assert links["every sample, with its counters and scores"] == "samples.jsonl"
    assert links["pictures of scd"] == "pictures/scd/"
    assert all((run / path).exists() for path in links.values())
    for path in links.values():
        assert f"(<{path}>)" in pages[0]
        assert f'href="{path}"' in pages[1]
    shutil.rmtree(run / "pictures")
    (run / "samples.jsonl").unlink()
    write_reports(run)
    for name in ("report.md", "report.html"):
        assert "samples.jsonl" not in (run / name).read_text()


def test_both_pages_tell_when_how_long_how_fast_and_what_stood(run):
    report = Report.read(run)
    report.date, report.seconds_total = "2031-02-03T04:05:06+00:00", 12_000.0
    row = report.methods["scd"]
    row.seconds_median, row.seconds_p95 = 1.25, 2.75
    row.outputs_per_second, row.tokens_per_second = 0.625, 321.0
    row.accepted_lengths = [0.25, 0.5, 0.0, 0.0, 0.0, 0.0, 0.25]
    report.write(run)
    write_reports(run)
    for name in ("report.md", "report.html"):
        page = (run / name).read_text().replace("\u2011", "-")
        for text in ("2031-02-03 04:05 UTC", "3 h 20 min", "latency p50, s", "latency p95, s"):
            assert text in page
        for text in ("1.25", "2.75", "images per second", "0.625", "tokens per second", "321"):
            assert text in page
    rows = (run / "report.md").read_text().splitlines()
    at = next(i for i, line in enumerate(rows) if line.startswith("| tokens that stood"))
    assert rows[at] == "| tokens that stood | 0 | 1 | 2 | 3 | 4 | 5–6 |"
    assert "| scd | 25 % | 50 % | 0 % | 0 % | 0 % | 25 % |" in rows[at:]


def test_without_speed_there_is_no_frontier(run):
    report = Report.read(run)
    for row in report.methods.values():
        row.speedup_median = None
    report.write(run)
    assert run / "frontier.svg" not in write_reports(run)
    assert "frontier.svg" not in (run / "report.md").read_text()


def test_a_failure_leaves_the_old_files(run):
    write_reports(run)
    before = [(run / name).read_bytes() for name in ("report.md", "report.html")]
    report = Report.read(run)
    report.suite = "another"
    report.write(run)
    text = (run / "samples.jsonl").read_text()
    (run / "samples.jsonl").write_text("{}\n" + text)
    with pytest.raises(InputError, match=r"samples\.jsonl:1: "):
        write_reports(run)
    assert [(run / name).read_bytes() for name in ("report.md", "report.html")] == before


def test_no_such_folder(tmp_path):
    with pytest.raises(InputError, match=r"no folder .*missing; name the one"):
        write_reports(tmp_path / "missing")


def test_a_folder_without_a_report(tmp_path):
    with pytest.raises(InputError, match=r"can't read .*report\.json"):
        write_reports(tmp_path)


def test_a_report_of_another_version(run):
    data = json.loads((run / "report.json").read_text())
    (run / "report.json").write_text(json.dumps({**data, "version": VERSION + 1}))
    with pytest.raises(InputError, match=f"not a version {VERSION} report; run the suite again"):
        write_reports(run)
