"""Two finished runs compared sample by sample: differences, intervals and tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...files import to_json
from ...registry import check_name
from ..metrics.registry import metric_of_run
from ..report.format import chance, decimals, fact, fixed, significant
from ..report.format import interval as interval_text
from ..report.samples import Key, Samples, read_samples
from ..report.table import Cell, Row, Table
from ..report.tables import flat
from ..schema import Report
from ..sweeps import split_methods
from .bootstrap import FEWEST_CLUSTERS, FEWEST_PAIRS, StratifiedMean, ratio_interval
from .paired_tests import holm, paired_test, ratio_test

SECONDS = "decode seconds"


def compare_reports(a: Path, b: Path, methods: str | None = None) -> list[dict[str, Any]]:
    """Compare the methods of two finished runs by each quality metric and by decode seconds.

    Args:
        a, b: folders of the runs.
        methods: pairs such as `"sjd:scd,plain:plain"`, the method of A before that of B; None:
            every method that both have.

    Returns:
        Rows, one metric of a method in A and of one in B each:

        - `method_a`, `method_b`, `metric`;
        - `n` pairs: samples of equal index, seed and prompt in both; `unpaired_a`, `unpaired_b`:
          samples that only one of them has; they count for nothing here;
        - `a`, `b`: the metric over the pairs; of seconds the medians;
        - `difference`, `difference_ci95`: b less a, with its 95 % bootstrap interval, None of too
          few prompts; None for seconds;
        - `ratio`, `ratio_ci95`: for seconds: a over b pair by pair and token for token, for two
          answers may differ in length; the median, so above 1 B is faster;
        - `test`, `p`: the paired test and its two-sided p-value, outputs for one prompt taken
          together, see `paired_test`; `p_holm`: the same, corrected for
          all rows of the comparison.

    Raises:
        InputError: a folder is not a finished run, a method is not in it, or nothing pairs.
    """
    left, right = Report.read(_run(a)), Report.read(_run(b))
    pairs = _pairs(left, right, methods)
    mine, theirs = read_samples(a), read_samples(b)
    rows = [
        row
        for x, y in pairs
        for row in (*_qualities(mine, x, theirs, y), *_seconds(mine, x, theirs, y))
    ]
    if not rows:
        raise InputError(
            f"nothing to compare: no sample of {a} and {b} has the same index, seed and prompt; "
            "run both with the same suite and --seed"
        )
    corrected = holm([row["p"] for row in rows])
    return [row | {"p_holm": p} for row, p in zip(rows, corrected, strict=True)]


def unlike_settings(a: Report, b: Report) -> list[str]:
    """Differences between the settings of two runs besides their methods, a line each."""

    def said(report: Report) -> dict[str, Any]:
        names = ("suite", "pipeline", "model")
        groups = {"setting": report.settings, "environment": report.environment}
        return {name: getattr(report, name) for name in names} | flat(groups)

    one, other = said(a), said(b)
    return [
        f"{name} differs: {fact(one.get(name))} and {fact(other.get(name))}"
        for name in dict.fromkeys([*one, *other])
        if one.get(name) != other.get(name)
    ]


def left_out(
    a: Report, b: Report, rows: Sequence[Mapping[str, Any]], methods: str | None = None
) -> list[str]:
    """Methods and metrics of two runs that `rows` leave out, a line each.

    Args:
        rows, methods: what `compare_reports` gave, and what it was given.
    """
    told = []
    compared = {(row["method_a"], row["method_b"]) for row in rows}
    alone = [
        f"only {who} has {', '.join(names)}"
        for who, own, other in (("A", a, b), ("B", b, a))
        if (names := [name for name in own.methods if name not in other.methods])
    ]
    if methods is None and alone:
        both = ", ".join(dict.fromkeys(row["method_a"] for row in rows))
        told.append(
            f"compared are {both}; {' and '.join(alone)}: pair methods of unlike names with "
            "--methods x:y"
        )
    pairs = _pairs(a, b, methods)
    apart = [pair for pair in pairs if pair not in compared]
    told += [f"{_paired(*p)} not compared: no sample of equal index, seed, prompt" for p in apart]
    measured = {(row["method_a"], row["method_b"], row["metric"]) for row in rows}
    for x, y in (pair for pair in pairs if pair in compared):
        metrics = dict.fromkeys([*a.methods[x].quality, *b.methods[y].quality])
        missing = ", ".join(name for name in metrics if (x, y, name) not in measured)
        if missing:
            why = "no figures of single samples in both"
            told.append(f"{missing} of {_paired(x, y)} not compared: {why}")
    return told


def compare_command(a: Path, b: Path, as_json: bool, methods: str | None = None) -> int:
    """`mmspec eval compare A B`: print what differs in the settings, then the rows."""
    rows = compare_reports(a, b, methods)
    left, right = Report.read(a), Report.read(b)
    warnings = [*left_out(left, right, rows, methods), *unlike_settings(left, right)]
    if any(row["metric"] == SECONDS for row in rows) and a.resolve() != b.resolve():
        warnings.append("seconds come from two runs: what the machine did between them counts too")
    if as_json:
        text = to_json({"warnings": warnings, "rows": rows}, indent=2)
    else:
        text = "\n".join([*(f"warning: {line}" for line in warnings), _table(rows).aligned()])
    print(text)  # noqa: T201 - the command's output
    return 0


def _run(folder: Path) -> Path:
    if not folder.is_dir():
        raise InputError(f"no folder {folder}; name one that `mmspec eval run -o` wrote")
    return folder


def _pairs(a: Report, b: Report, methods: str | None) -> list[tuple[str, str]]:
    if methods is None:
        shared = [(name, name) for name in a.methods if name in b.methods]
        if not shared:
            raise InputError(
                f"no method is in both: {', '.join(a.methods)} and {', '.join(b.methods)}; name "
                "pairs with --methods x:y"
            )
        return shared
    pairs = []
    for text in split_methods(methods):
        pairs.append(_pair(text, list(a.methods), list(b.methods)))
    if not pairs:
        raise InputError("--methods is empty; name pairs such as sjd:scd")
    return pairs


def _pair(text: str, first: Sequence[str], second: Sequence[str]) -> tuple[str, str]:
    """A row of either run, from "x:y" or the name of both, which may hold colons itself."""
    parts = text.split(":")
    ways = [(":".join(parts[:n]), ":".join(parts[n:])) for n in range(1, len(parts))]
    for x, y in [(text, text), *ways]:
        if x in first and y in second:
            return x, y
    *_, (x, y) = [way for way in ways if way[0] in first] or [(text, "")]
    check_name("method of the first run", x, first)
    check_name("method of the second run", y or x, second)
    return x, y or x


def _qualities(mine: Samples, x: str, theirs: Samples, y: str) -> Iterator[dict[str, Any]]:
    one, other = mine.quality.get(x, {}), theirs.quality.get(y, {})
    for metric in dict.fromkeys(m for s in one.values() for m in s.scores):
        left, right = (
            {key: s for key, s in of.items() if metric in s.scores} for of in (one, other)
        )
        keys = [key for key in left if key in right]
        if not keys:
            continue
        values = np.array([[of[k].scores[metric] for k in keys] for of in (left, right)])
        told = metric_of_run(metric)
        strata = [left[key].tag if told.by_task else "" for key in keys]
        items = [left[key].what for key in keys]
        means = StratifiedMean(strata, items)
        a, b = (means(v) for v in values)
        spread = means.interval(values[1] - values[0], told.span)
        yield {
            **_row((x, y, metric), (left, right), paired_test(values[0], values[1], items)),
            "a": a,
            "b": b,
            "difference": b - a,
            "difference_ci95": spread if means.fewest >= FEWEST_CLUSTERS else None,
        }


def _seconds(mine: Samples, x: str, theirs: Samples, y: str) -> Iterator[dict[str, Any]]:
    """Row of decode seconds; none if nothing was timed in both."""
    left, right = mine.speed.get(x, {}), theirs.speed.get(y, {})
    keys = [key for key in left if key in right]
    if not keys:
        return
    calls = [[of[key] for key in keys] for of in (left, right)]
    a, b = (np.array([call.per_token for call in of]) for of in calls)
    if not (a > 0).all() or not (b > 0).all():
        raise InputError(f"decode_seconds of {x} or {y} are not above 0; run the suite again")
    ratio, spread = ratio_interval(a / b)
    medians = (float(np.median([call.decode_seconds for call in of])) for of in calls)
    yield {
        **_row((x, y, SECONDS), (left, right), ratio_test(a / b)),
        **dict(zip("ab", medians, strict=True)),
        "ratio": ratio,
        "ratio_ci95": spread if len(keys) >= FEWEST_PAIRS else None,
    }


def _row(
    names: tuple[str, str, str], sides: Sequence[Mapping[Key, Any]], test: tuple[str, float]
) -> dict[str, Any]:
    """A row without its figures."""
    left, right = sides
    n = len(left.keys() & right.keys())
    none = dict.fromkeys(("a", "b", "difference", "difference_ci95", "ratio", "ratio_ci95"))
    counts = {"n": n, "unpaired_a": len(left) - n, "unpaired_b": len(right) - n}
    told = dict(zip(("method_a", "method_b", "metric"), names, strict=True))
    return {**told, **counts, **none, "test": test[0], "p": test[1]}


def _paired(x: str, y: str) -> str:
    """Name of a pair of methods."""
    return x if x == y else f"{x} : {y}"


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows for a terminal."""
    columns = ("method", "metric", "pairs", "unpaired", "A", "B", "B against A (95 %)", "test")
    made = []
    for row in rows:
        digits = decimals([row["a"], row["b"]])
        if row["ratio"] is None:
            values = [fixed(row[side], digits) for side in ("a", "b")]
            spread = interval_text(row["difference_ci95"], digits)
            change = Cell(fixed(row["difference"], digits, sign=True), spread)
        else:
            values = [significant(row[side], unit=" s") for side in ("a", "b")]
            spread = interval_text(row["ratio_ci95"], 2)
            change = Cell(fixed(row["ratio"], 2, unit="× as fast"), spread)
        unpaired = f"{row['unpaired_a']} of A, {row['unpaired_b']} of B"
        before = map(Cell, (row["metric"], str(row["n"]), unpaired, *values))
        after = map(Cell, (row["test"], chance(row["p"]), chance(row["p_holm"])))
        made.append(Row(_paired(row["method_a"], row["method_b"]), (*before, change, *after)))
    return Table("", (*columns, "p", "p, Holm"), tuple(made))
