"""The tables of results: which rows they tell, of which reports, and how a page gets them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mmspec.cli.main import main
from mmspec.eval.report.frontier import calls_frontier
from mmspec.eval.report.overview import LEAST, RULE, overview, telling
from mmspec.eval.report.pages import definitions
from mmspec.eval.report.svg import standalone
from mmspec.eval.report.tables import headline
from mmspec.eval.schema import MethodResult, Report
from mmspec.eval.schema_parts import Quality

MACHINE = {"processor": "P", "threads": 2, "device": "cpu", "dtype": "float32"}
# contract, role, speed-up, quality's verdict
ROWS = {
    "plain": ("exact", "baseline", None, ""),
    "quick": ("exact", "method", 1.5, "undecided"),
    "slow": ("exact", "method", 0.8, "undecided"),
    "middling": ("exact", "method", 1.2, "undecided"),
    "kept": ("lossy", "method", 1.8, "within 0.02"),
    "bold": ("lossy", "method", 3.0, "worse"),
    "grey": ("exact", "ablation", 9.0, ""),
    "theirs": ("exact", "peer", 1.1, ""),
    "alone": ("lossy", "sceptic", 4.0, "worse"),
    "idle": ("lossy", "sceptic", 2.0, "worse"),
}


def made(timed: int = 50, scores: dict[str, float] | None = None) -> Report:
    rows = {}
    for name, (contract, role, speedup, verdict) in ROWS.items():
        value = (scores or {}).get(name, 0.5)
        quality = Quality(value, (0.4, 0.6), 0.01, (-0.02, 0.04), verdict=verdict)
        row = MethodResult(contract, 60, 100.0, 100.0, 2.5, [], {}, role, timed)
        row.speedup_median = speedup if timed else None
        row.speedup_ci95 = None if row.speedup_median is None else (speedup - 0.1, speedup + 0.1)
        rows[name] = row
        row.quality = {"geneval": quality}
    settings = {"speed_batches": [1], "temperature": 1.0}
    return Report("s", "image", "m", "c", settings, MACHINE, 1.25, {}, rows)


def test_the_rows_of_the_rule():
    assert telling(made()) == ["quick", "kept", "bold", "slow", "theirs", "alone"]


def test_without_times_the_best_are_told():
    scores = {"middling": 0.9, "idle": 0.7, "slow": 0.1}
    told = telling(made(0, scores))
    assert (told[0], told[-1]) == ("middling", "idle")
    assert "slow" in told


def test_the_table_and_its_conditions(tmp_path):
    made().write(tmp_path)
    rule, head, ran, table = overview([tmp_path / "report.json"], tmp_path).split("\n\n")
    assert (rule, head) == (RULE, "### image: s")
    assert ran == (
        "[The report](report.md): P, 2 threads; float32; batch 1; temperature 1; n = 50 timed; "
        "60 judged; target's entropy 1.25 nats a token."
    )
    assert table.splitlines()[2] == (
        "| quick | exact | 1.0× | 2.50 tokens | 1.50× (1.40–1.60) | – "
        "| geneval 0.500 (0.400–0.600), +0.010 (−0.020 to 0.040), undecided |"
    )
    assert "alone (the sceptic's row)" in table


def test_links_lead_from_the_page_to_the_report(tmp_path):
    made().write(tmp_path / "reports" / "s")
    for short in (False, True):
        text = overview([tmp_path / "reports" / "s"], tmp_path / "docs", short)
        assert "](../reports/s/report.md)" in text


def short_rows(path) -> list[list[str]]:
    table = overview([path], path, short=True).split("\n\n")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


def test_the_short_table_has_two_rows_of_a_kind_of_model(tmp_path):
    """The fastest exact method and a sceptic's row; where one is missing, what stands for it."""
    report = made()
    report.write(tmp_path)
    told = short_rows(tmp_path)
    assert [row[1] for row in told] == ["quick", "alone (the sceptic's row)"]
    assert told[0][0] == "image"
    assert told[0][2:] == ["exact", "1.50× (1.40–1.60)", "geneval 0.500, plain 0.500, undecided"]
    for row in report.methods.values():  # of a model with rounded weights, which is another
        row.contract = "exact-rounded" if row.contract.startswith("exact") else row.contract
    report.write(tmp_path)
    assert [row[1] for row in short_rows(tmp_path)] == ["kept", "alone (the sceptic's row)"]
    for row in report.methods.values():
        row.contract = "lossy"
        row.role = "ablation" if row.role == "sceptic" else row.role
    report.write(tmp_path)
    assert [row[1] for row in short_rows(tmp_path)] == ["kept", "slow"]


def test_a_published_checkpoint_is_named_in_the_short_table(tmp_path):
    """Text has no embedded model: its rows are of a checkpoint."""
    report = made()
    report.pipeline, report.model = "text", "smollm2"
    report.write(tmp_path)
    assert [row[0] for row in short_rows(tmp_path)] == ["text (smollm2)"] * 2


def test_the_short_table_takes_the_report_that_timed_the_most(tmp_path, capsys):
    """Of those that judged what came out, if any did."""
    names = "many", "more", "untimed", "unjudged"
    many, more, untimed, unjudged = (tmp_path / name for name in names)
    made(50).write(many)
    made(60).write(more)
    made(0).write(untimed)
    most = made(70)
    for row in most.methods.values():
        row.quality = {}
    most.write(unjudged)
    assert "(unjudged/report.md)" in overview([unjudged], tmp_path, short=True)
    text = overview([many, more, untimed, unjudged], tmp_path, short=True)
    assert "(more/report.md)" in text
    assert "many" not in text
    assert main(["eval", "table", "--short", str(untimed)]) == 2
    assert "no report that timed" in capsys.readouterr().err


def test_notes_that_change_what_a_figure_means_stand_in_the_table(tmp_path):
    report = made()
    report.notes = ["quick: few samples", "measured with the model's weights in half precision; …"]
    report.write(tmp_path)
    assert "nats a token; weights in half precision, which ship in eight bits since." in overview(
        [tmp_path], tmp_path
    )
    assert "(weights in half precision, which" in overview([tmp_path], tmp_path, short=True)


def test_a_siblings_calls_stand_beside_the_targets(tmp_path):
    report = made()
    report.methods["bold"].nfe_per_sample = 5.0
    report.methods["bold"].sibling_calls_per_sample = 20.0
    report.methods["alone"].nfe_per_sample = 0.0
    report.methods["alone"].sibling_calls_per_sample = 20.0
    report.write(tmp_path)
    rows = {
        line[2:].split(" | ")[0]: line
        for line in overview([tmp_path], tmp_path).splitlines()
        if " | " in line
    }
    assert "| 20.0×, 4.0× with the sibling's 20.0 calls |" in rows["bold"]
    assert "| 5.0×, the sibling's 20.0 calls alone |" in rows["alone (the sceptic's row)"]
    told = calls_frontier(report, standalone)
    assert "calls of target and sibling" in told
    assert "bold: 4.00 times" in told
    assert ("NFE", "sibling's calls") in pairwise(headline(report).columns)
    assert "Sibling's calls" in definitions(report)
    assert "Sibling's calls" not in definitions(made())


def test_a_drafters_head_calls_stand_beside_the_targets(tmp_path):
    """Fewer calls of the target of continuous tokens are no fewer in sequence."""
    report = made()
    report.methods["plain"].head_calls_per_sample = 6400.0
    for name, calls, drafted in (("bold", 800.0, 6336.0), ("alone", 0.0, 6400.0)):
        report.methods[name].head_calls_per_sample = calls
        report.methods[name].drafter_head_calls_per_sample = drafted
    report.write(tmp_path)
    rows = {
        line[2:].split(" | ")[0]: line
        for line in overview([tmp_path], tmp_path).splitlines()
        if " | " in line
    }
    assert "| 8.0×, and 6,336 head calls of the drafter |" in rows["bold"]
    alone = rows["alone (the sceptic's row)"]
    assert "the drafter's 6,400 head calls alone" in alone
    assert ("head calls", "drafter's head calls") in pairwise(headline(report).columns)
    report.methods["bold"].drafter_head_calls_per_sample = 0.0
    report.methods["alone"].drafter_head_calls_per_sample = 0.0
    assert "drafter's head calls" not in headline(report).columns


def test_few_timed_prompts_and_cut_runs_are_not_told(tmp_path, capsys):
    many, few = tmp_path / "many", tmp_path / "few"
    made().write(many)
    made(LEAST - 1).write(few)
    assert overview([many, few], tmp_path) == overview([many], tmp_path)
    short = made()
    short.for_reporting = False
    for report, said in ((made(LEAST - 1), "no report that timed"), (short, "was cut short")):
        report.write(few)
        assert main(["eval", "table", str(few)]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["table", "matrix"])
def test_into_a_page(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # links of what is printed lead from there
    made().write(tmp_path)
    page, line = tmp_path / "page.md", f"<!-- mmspec eval {command} x -->"
    assert main(["eval", command, str(tmp_path)]) == 0
    text = capsys.readouterr().out
    page.write_text(f"before\n{line}\nold\n<!-- end -->\nafter\n<!-- end -->\n")
    for _ in range(2):  # again changes nothing
        assert main(["eval", command, str(tmp_path), "--into", str(page)]) == 0
        wanted = f"before\n{line}\n\n{text}\n<!-- end -->\nafter\n<!-- end -->\n"
        assert page.read_text() == wanted


@pytest.mark.parametrize(
    "content", ["", "<!-- mmspec eval table -->", "<!-- mmspec eval matrix x -->"]
)
def test_a_page_without_a_place_stays_as_it_is(content, tmp_path, capsys):
    made().write(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(content)
    assert main(["eval", "table", str(tmp_path), "--into", str(page)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert page.read_text() == content


def test_calls_may_hold_texts(tmp_path):
    report = made()
    report.settings["calls"] = {"short": {"stop": ["."], "temperature": 1.0}}
    report.write(tmp_path)
    assert "short stop ., temperature 1;" in overview([tmp_path], tmp_path)
