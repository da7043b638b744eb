"""`mmspec eval`: suites, reports and comparisons on the command line."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import locked, to_json
from ..progress import say
from . import options
from .eval_run import add_run
from .tables import add_tables


def add_commands(commands: Any) -> None:
    """The parsers of `mmspec eval`."""
    evaluate = commands.add_parser("eval", help="measure methods over a suite")
    options.add_quiet(evaluate)
    actions = evaluate.add_subparsers(required=True, metavar="ACTION")
    add_run(actions)

    text = "draw report.md and report.html of a run again"
    report = options.add_command(actions, "report", _report, text)
    report.add_argument("folder", type=Path, help="of the run")
    options.add_json(report, "lines")

    text = "two runs against each other, with significance"
    compare = options.add_command(actions, "compare", _compare, text)
    compare.add_argument("a", type=Path, help="folder of a run")
    compare.add_argument("b", type=Path, help="folder of the other run")
    compare.add_argument("--methods", help="x of A against y of B: x:y,z (default: all of both)")
    options.add_json(compare)

    text = "random outputs of a run on one picture, each with its prompt and verdict"
    sheet = options.add_command(actions, "sheet", _sheet, text)
    sheet.add_argument("folder", type=Path, help="of the run")
    sheet.add_argument("--method", default="plain", help="whose outputs (default: plain)")
    sheet.add_argument("--count", type=int, default=24, help="of outputs (default: 24)")
    sheet.add_argument("--seed", type=options.seed, default=0, help="of the choice (default: 0)")
    sheet.add_argument("-o", "--out", type=Path, required=True, help="file: .png, .webp or .jpg")
    options.add_json(sheet, "a line")

    add_tables(actions)

    listing = options.add_command(
        actions, "ls", _ls, "list suites, metrics, judges, or networks' weights"
    )
    listing.add_argument(
        "what",
        nargs="?",
        choices=("suites", "metrics", "judges", "weights"),
        default="suites",
        help="what to list; weights: the names that --weights takes (default: suites)",
    )
    options.add_json(listing)

    text = "check suites, of the package or your own"
    validate = options.add_command(actions, "validate", _validate, text)
    validate.add_argument("suite", nargs="*", help="names or YAML files (default: all)")
    options.add_json(validate, "lines")


def _report(args: argparse.Namespace) -> int:
    from ..eval.report.pages import write_reports

    if not args.folder.is_dir():
        raise InputError(f"no folder {args.folder}; name the one that `mmspec eval run -o` wrote")
    say("drawing the report")
    with locked(args.folder):
        written = write_reports(args.folder)
    return options.print_list("written", map(str, written), args.json)


def _sheet(args: argparse.Namespace) -> int:
    from ..eval.report.sheet import sample_sheet, write_sheet

    options.check_range(args, 1, None, "count")
    sheet = sample_sheet(args.folder, args.method, args.count, args.seed)
    return options.print_list("written", [str(write_sheet(sheet, args.out))], args.json)


def _compare(args: argparse.Namespace) -> int:
    say("comparing")
    from ..eval.measure.significance import compare_command

    return compare_command(args.a, args.b, args.json, args.methods)


def _ls(args: argparse.Namespace) -> int:
    from ..eval.judges.base import JUDGES
    from ..eval.metrics.registry import METRICS
    from ..eval.suite import load_suite, suite_names
    from ..rewards.registry import FEATURES, REWARDS

    if args.what == "metrics":
        return _ls_metrics(args.json)
    if args.what == "suites":
        found = {name: load_suite(name).summary for name in suite_names()}
    elif args.what == "judges":
        found = {
            judge.name: f"finds {len(judge.classes)} kinds of objects; "
            + (f"needs --weights {', '.join(judge.weights)}" if judge.weights else "needs nothing")
            for judge in JUDGES.all()
        }
    else:
        parts = (*REWARDS.all(), *FEATURES.all())
        found = {part.name: part.weights for part in parts if part.weights}
        declared: tuple[Any, ...] = (*METRICS.all(), *JUDGES.all())
        for each in declared:
            found |= each.weights
    return options.print_names(found, args.json)


def _ls_metrics(as_json: bool) -> int:
    from ..eval.metrics.registry import all_metrics
    from ..eval.modalities.base import MODALITIES
    from ..eval.report.table import Cell, Row, Table

    found: list[dict[str, Any]] = [
        {
            "name": metric.name,
            "pipelines": [n for n, of in MODALITIES.items() if isinstance(metric, of.metrics)],
            "files": list(metric.sources),
            "needs": list(metric.needs),
            "larger_is_better": metric.larger_is_better,
            "bounds": [end if math.isfinite(end) else None for end in metric.bounds],
            "summary": metric.summary,
        }
        for metric in all_metrics()
    ]
    if as_json:
        print(to_json(found, indent=2))
        return 0
    rows, lists = [], ("pipelines", "files", "needs")
    for one in found:
        low, high = ("" if end is None else f"{end:g}" for end in one["bounds"])
        better = "larger" if one["larger_is_better"] else "smaller"
        told = (*(", ".join(one[what]) for what in lists), f"{low} to {high}", better)
        rows.append(Row(one["name"], tuple(map(Cell, (*told, one["summary"])))))
    columns = ("metric", *lists, "values", "better", "what it says")
    print(Table("", columns, tuple(rows)).aligned())
    return 0


def _validate(args: argparse.Namespace) -> int:
    from ..eval.modalities.base import MODALITIES
    from ..eval.suite import load_suite, suite_names

    valid = []
    for name in args.suite or suite_names():
        suite = load_suite(name)
        if suite.prompts:
            MODALITIES[suite.pipeline].items(suite, None)
        valid.append(suite.name)
    return options.print_list("valid", valid, args.json, "{}: valid")
