"""Tables of pages: `mmspec eval table` and `matrix`, made from reports, the others from trials."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_text, to_json, write_atomic
from .options import add_command, add_json

END = "<!-- end -->"


def add_tables(actions: Any) -> None:
    """The parsers of the commands."""
    for name, text, make in (
        ("table", "speed and quality of many reports in Markdown tables", _table),
        ("matrix", "methods by kind of model and checkpoint, with contract and evidence", _matrix),
        ("systems", "published systems, and how each is asked for here", _systems),
        ("causal", "which causal models of transformers are taken, tried out here", _causal),
        ("arguments", "which arguments of generate are honoured, tried out here", _arguments),
    ):
        parser = add_command(actions, name, put, text)
        parser.set_defaults(make=make, action=f"eval {name}")
        if make is _causal:
            parser.add_argument(
                "kinds", nargs="*", metavar="type", help="model types, such as llama; none: all"
            )
        elif make is not _arguments:
            parser.add_argument("reports", type=Path, nargs="+", help="report.json or its folder")
        if make is _systems:
            parser.add_argument(
                "--tests", type=Path, help="folder of tests, searched for what they enumerate"
            )
        if make is _table:
            parser.add_argument("--short", action="store_true", help="two rows a kind of model")
        add_into(parser, f"eval {name}")
        add_json(parser, "Markdown")


def _table(args: argparse.Namespace) -> str:
    from ..eval.report.overview import overview

    base = Path() if args.into is None else args.into.parent
    return overview(sorted(args.reports), base, args.short)


def _matrix(args: argparse.Namespace) -> str:
    from ..eval.report.matrix import matrix

    return matrix(sorted(args.reports))


def _systems(args: argparse.Namespace) -> str:
    from ..eval.report.systems import systems

    if args.tests is not None and not args.tests.is_dir():
        raise InputError(f"no folder of tests at {args.tests}")
    return systems(sorted(args.reports), args.tests)


def _causal(args: argparse.Namespace) -> str:
    from transformers.utils import logging

    from ..eval.report.causal import causal

    logging.set_verbosity_error()  # of configs that are tiny on purpose
    return causal(args.kinds)


def _arguments(args: argparse.Namespace) -> str:
    import logging
    import warnings

    from transformers.utils import logging as theirs

    from ..eval.report.generate_arguments import generate_arguments

    theirs.set_verbosity_error()  # of settings that contradict each other on purpose
    logging.getLogger("mmspec").setLevel(logging.ERROR)  # of speed, which is not tried here
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return generate_arguments()


def put(args: argparse.Namespace) -> int:
    """Print a table that `args.make` makes, or put it into the page `args.into`.

    As JSON it is `{"markdown": text, "into": page or null}`, whether it is put into one or not.
    """
    as_json = getattr(args, "json", False)
    if args.into is None:
        text = args.make(args)
        print(to_json({"markdown": text, "into": None}) if as_json else text, end="")
        return 0
    page = read_text(args.into)
    before, start, rest = page.partition(f"<!-- mmspec {args.action}")
    command, arrow, rest = rest.partition("-->")
    _, end, after = rest.partition(END)
    if not (start and arrow and end):
        raise InputError(f"{args.into} has no <!-- mmspec {args.action} … --> with {END} after it")
    text = args.make(args)
    write_atomic(args.into, f"{before}{start}{command}{arrow}\n\n{text}\n{end}{after}")
    if as_json:
        print(to_json({"markdown": text, "into": str(args.into)}))
    return 0


def add_into(parser: argparse.ArgumentParser, action: str) -> None:
    """The option that names a page for the text that a command makes."""
    parser.add_argument(
        "--into",
        type=Path,
        help=f"page whose text from <!-- mmspec {action} … --> to {END} is replaced",
    )
