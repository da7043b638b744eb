"""Routed blocks in tables: what is less than what, of what it is mixed, shares of plain's."""

from __future__ import annotations

from mmspec.eval.report.detail_tables import equal_shares
from mmspec.eval.report.frontier import frontier
from mmspec.eval.report.overview import telling
from mmspec.eval.report.pages import definitions
from mmspec.eval.report.summary import lede
from mmspec.eval.report.tables import headline, phases
from mmspec.eval.schema import MethodResult, Report
from mmspec.eval.schema_parts import EqualShare, Quality

PARTS = {"rest": 0.5, "reward": 0.25, "commit": 0.125, "draft": 1.0, "decode": 2.0}


def row(drafted: float | None, quality: Quality, **more) -> MethodResult:
    return MethodResult(
        "lossy", 100, 40.0, 40.0, 1.0, [], PARTS, quality={"correctness": quality},
        drafted_share=drafted, **more,
    )  # fmt: skip


def made(**at_equal_share: EqualShare) -> Report:
    share = Quality(0.9, (0.85, 0.95), -0.0144, (-0.03, 0.001))
    share.share_of_plain, share.share_ci95 = 0.98425, (0.9712, 1.0021)
    rows = {
        "plain": row(0.0, Quality(0.9144), role="baseline"),
        "sdvg[tau=60]": row(0.41, share, at_equal_share=at_equal_share),
    }
    for name, value in {"random[0.25]": 0.25, "random[0.5]": 0.5, "mean[60]": 60.0}.items():
        rows[name] = row(value, Quality(0.8), knob="k", knob_value=value)
    return Report("sdvg", "video", "embedded", "", {}, {}, None, {}, rows)


def test_what_is_less_than_what():
    mixed = EqualShare(0.0312, (0.0101, 0.0522), ["random[0.25]", "random[0.5]"], 0.64)
    open_one = EqualShare(-0.002, None, ["plain", "mean[60]"], 1.0)
    table = equal_shares(made(random=mixed, mean=open_one))
    assert table.columns == ("method", "drafted", "against random", "against mean")
    (only,) = table.rows
    assert [cell.line() for cell in only.cells] == [
        "41 %",
        "+0.031 (0.010–0.052), 0.25 (36 %) and 0.5 (64 %)",
        "−0.002, plain (0 %) and 60 (100 %)",
    ]
    assert "Gain in correctness over other ways" in table.caption
    assert equal_shares(made()) is None


def test_rows_that_reuse_say_how_much():
    report = made(random=EqualShare(0.02, None, ["random[0.25]", "random[0.5]"], 0.5))
    report.methods["sdvg[tau=60]"].reused_share = 0.26
    table = equal_shares(report)
    assert table.columns == ("method", "drafted", "reused", "against random")
    assert [cell.text for cell in table.rows[0].cells[:2]] == ["41 %", "26 %"]
    assert "at equal drafted or reused shares" in table.caption
    assert "reused" in headline(report).columns
    assert "reused" not in headline(made()).columns


def test_a_row_that_is_mixed_itself():
    itself = EqualShare(0.02, None, ["plain", "sdvg[tau=60]"], 0.8, against="random[0.25]")
    ((cell,),) = ([*of.cells[1:]] for of in equal_shares(made(random=itself)).rows)
    assert cell.line() == (
        "+0.020, itself mixed: plain (20 %) and sdvg[tau=60] (80 %), against 0.25"
    )


def test_shares_in_the_headline():
    table = headline(made())
    lines = [dict(zip(table.columns[1:], of.cells, strict=True)) for of in table.rows]
    assert [line["drafted"].text for line in lines[:2]] == ["0 %", "41 %"]
    told = lines[1]["correctness ↑"].notes
    assert told == ("−0.014 (−0.030 to 0.001)", "98.4 % of plain's (97.1–100.2)")
    assert lines[0]["correctness ↑"].notes == ()


def test_speedups_are_of_all_clips_together():
    """Beside a mean quality: drafts that stand in most clips make a median that no run has."""
    report = made()
    other, row = report.methods["mean[60]"], report.methods["sdvg[tau=60]"]
    row.speedup_median, row.speedup_ci95 = 3.0, (2.0, 4.0)
    row.speedup_of_all, row.speedup_of_all_ci95 = 1.5, (1.2, 1.9)
    other.speedup_median, other.speedup_of_all = 2.5, 1.75
    table = headline(report)
    line = dict(zip(table.columns[1:], table.rows[1].cells, strict=True))
    assert line["speed-up"].line() == "1.50× (1.20–1.90)"
    assert line["of the median clip"].line() == "3.00× (2.00–4.00)"
    told = []
    frontier(report, lambda canvas, name, what: told.append(what) or "")
    assert "sdvg[tau=60]: 1.50 times" in told[0]
    assert lede(report).startswith("mean[60] (lossy) is not surely faster: 1.75 times")
    assert telling(report)[0] == "mean[60]"


def test_parts_in_their_order():
    columns = ("method", "draft", "decode", "reward", "commit", "rest", "sum")
    assert phases(made()).columns == columns


def test_words_of_video():
    said = definitions(made())
    assert "clips together" in said["Speed-up"]
    assert "At equal drafted shares" not in said  # no row is compared so
    report = made()
    report.methods["sdvg[tau=60]"].at_equal_share = {"random": EqualShare(0.1, None, [], 0.5)}
    assert "At equal drafted shares" in definitions(report)
    other = made()
    other.pipeline = "image"
    assert "token loop" in definitions(other)["Speed-up"]
