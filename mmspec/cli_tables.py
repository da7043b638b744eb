"""`mmspec eval table` and `mmspec eval matrix`: the README's tables, made from reports."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .errors import InputError
from .text_file import read_text

END = "<!-- end -->"


def add_tables(actions: Any) -> None:
    """The parsers of both commands."""
    for name, text, run in (
        ("table", "speed and quality of many reports in one Markdown table", _table),
        ("matrix", "methods by modality and checkpoint, with contract and evidence", _matrix),
    ):
        parser = actions.add_parser(name, help=text)
        parser.set_defaults(run=run)
        parser.add_argument("reports", type=Path, nargs="+", help="report.json or its folder")
        parser.add_argument(
            "--into",
            type=Path,
            help=f"page whose text from <!-- mmspec eval {name} … --> to {END} is replaced",
        )


def _table(args: argparse.Namespace) -> int:
    from .eval.report.overview import overview

    return _put(args, "table", overview)


def _matrix(args: argparse.Namespace) -> int:
    from .eval.report.matrix import matrix

    return _put(args, "matrix", matrix)


def _put(args: argparse.Namespace, name: str, make: Callable[[Sequence[Path]], str]) -> int:
    if args.into is None:
        print(make(sorted(args.reports)), end="")
        return 0
    from .eval.files import write_atomic

    page = read_text(args.into)
    before, start, rest = page.partition(f"<!-- mmspec eval {name} ")
    command, arrow, rest = rest.partition("-->")
    _, end, after = rest.partition(END)
    if not (start and arrow and end):
        raise InputError(f"{args.into} has no <!-- mmspec eval {name} … --> with {END} after it")
    text = make(sorted(args.reports))
    write_atomic(args.into, f"{before}{start}{command}{arrow}\n\n{text}\n{end}{after}")
    return 0
