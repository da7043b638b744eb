"""`mmspec ls`: the methods, what they promise of which models; and the models that ship."""

from __future__ import annotations

import argparse
from typing import Any

from ..config import SpecConfig
from ..files import to_json
from ..methods import METHODS, MODALITIES
from .options import print_names

_LEGEND = """\
Under each kind of model: what a method promises there of draws at temperature 1; empty: it is not
for such models. vlm is text, with pictures in front of it or none. Needs: parts of the pipeline
beside the model. The knob trades speed for quality, or speed alone; all settings are fields of
mmspec.SpecConfig."""


def add_command(commands: Any) -> None:
    """The parser of `mmspec ls`."""
    listing = commands.add_parser("ls", help="list methods or models")
    listing.set_defaults(run=_ls)
    listing.add_argument("what", choices=("models", "methods"), help="what to list")
    listing.add_argument("--json", action="store_true", help="print JSON, not a table")


def _ls(args: argparse.Namespace) -> int:
    if args.what == "methods":
        return _methods(args.json)
    from ..pipelines.base import shipped

    return print_names({name: str(folder) for name, folder in shipped().items()}, args.json)


def _methods(as_json: bool) -> int:
    from ..eval.report.table import Cell, Row, Table

    found = {name: _facts(name) for name in METHODS}
    if as_json:
        print(to_json(found, indent=2))
        return 0
    rows = [
        Row(
            name,
            (
                *(Cell(facts["contracts"].get(modality, "")) for modality in MODALITIES),
                Cell(
                    " or ".join(
                        dict.fromkeys(filter(None, map(", ".join, facts["needs"].values())))
                    )
                ),
                Cell(facts["knob"] or ""),
                Cell(facts["summary"]),
            ),
        )
        for name, facts in found.items()
    ]
    columns = ("method", *MODALITIES, "needs", "knob", "what it is")
    print(Table("", columns, tuple(rows)).aligned())
    print(f"\n{_LEGEND}")
    return 0


def _facts(name: str) -> dict[str, Any]:
    """What there is to say of a method, as JSON has it."""
    from ..pipelines.contracts import contract

    method, config = METHODS[name], SpecConfig(name)
    summary = method.summary
    if method.of_text is not None:
        summary += f"; for vlm: {method.of_text.summary}"
    if method.role == "sceptic":
        summary += " (what a method has to beat)"
    return {
        "summary": summary,
        "contracts": {modality: contract(config, modality) for modality in method.serves},
        "needs": {modality: list(config.serving(modality).needs) for modality in method.serves},
        "parts": {"drafter": method.drafter, "rule": method.rule, "length": method.length},
        "knob": method.knob,
        "sweep": list(method.sweep),
        "role": method.role,
    }
