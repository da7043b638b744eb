"""Figures by category: acceptance and its intervals, from the counters of lines."""

from __future__ import annotations

from mmspec.eval.measure.bootstrap import quotient_interval
from mmspec.eval.measure.categories import categories
from mmspec.eval.report.detail_tables import by_class, by_position
from mmspec.eval.schema import MethodResult, Report

JUDGED = [[4, 3], [5, 5], [6, 1], [4, 4], [7, 2], [3, 3], [2]]
STOOD = [[3, 1], [5, 4], [1, 0], [4, 2], [2, 2], [3, 1], [1]]


def line(index: int, judged: list[int], stood: list[int]) -> dict:
    calls = judged[0]
    stats = {"calls": [calls], "emitted": [calls + sum(stood)], "judged_at": judged}
    counters = {"drafted": [sum(judged)], "accepted": [sum(stood)], "accepted_at": stood}
    stats |= {"method": "m", "contract": "exact", "target_tokens": [9], "seconds": {}}
    return {"index": index, "decode_seconds": 1.0 + index, "stats": stats | counters}


def made() -> MethodResult:
    """Seven prompts of one category, and one of another."""
    lines = [line(n, *both) for n, both in enumerate(zip(JUDGED, STOOD, strict=True))]
    lines.append(line(7, [4, 0], [2, 0]))  # one token a draft, where others have two
    row = MethodResult("exact", 8, 4.0, 9.0, 2.0, [], {})
    row.categories = categories(lines, list(lines), lambda n: "b" if n == 7 else "a")
    return row


def test_shares_and_their_intervals_are_those_of_the_counters():
    found = made().categories["a"]
    padded = [[*each, 0][:2] for each in JUDGED], [[*each, 0][:2] for each in STOOD]
    for place in range(2):
        judged, stood = ([each[place] for each in counts] for counts in padded)
        assert found.acceptance_by_position[place] == sum(stood) / sum(judged)
        assert found.acceptance_by_position_ci95[place] == quotient_interval(stood, judged)
    calls = [each[0] for each in JUDGED]
    emitted = [each[0] + sum(stood) for each, stood in zip(JUDGED, STOOD, strict=True)]
    assert found.mean_acceptance_length == sum(emitted) / sum(calls)
    assert found.mean_acceptance_length_ci95 == quotient_interval(emitted, calls)


def test_one_prompt_has_no_interval():
    alone = made().categories["b"]
    assert alone.acceptance_by_position == [0.5]
    assert alone.acceptance_by_position_ci95 == [None]
    assert alone.mean_acceptance_length_ci95 is None


def test_tables_print_them():
    report = Report("s", "text", "m", "", {}, {}, None, {}, {"draft": made()})
    found = report.methods["draft"].categories["a"]
    table = by_position(report)
    assert table.columns == ("position", "1", "2")
    assert [row.head for row in table.rows] == ["draft: a", "draft: b"]
    low, high = found.acceptance_by_position_ci95[1]
    share = found.acceptance_by_position[1]
    assert table.rows[0].cells[1].line() == f"{share:.2f} ({low:.2f}–{high:.2f})"
    assert [cell.line() for cell in table.rows[1].cells] == ["0.50", "–"]
    (row,) = by_class(report, "categories", "category").rows
    low, high = found.mean_acceptance_length_ci95
    tokens = f"{found.mean_acceptance_length:.2f} ({low:.2f}–{high:.2f}) tokens a call"
    assert tokens in row.cells[0].line()
