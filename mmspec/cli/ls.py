"""`mmspec ls`: the methods, what they promise of which models; and the models that ship."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import InputError
from ..files import to_json
from ..methods import MODALITIES, Modality, Preset, SpecConfig, parts, presets
from ..methods.chosen import KINDS, readers
from ..methods.config import all_options
from ..methods.options import options_of, text_of
from .options import add_command, add_json, print_names
from .tables import add_into, put

_LEGEND = """\
Under each kind of model: what a method promises there of draws at temperature 1; empty: it is not
for such models. vlm is text, with pictures in front of it or none. Needs: parts of the pipeline
beside the model. The knob trades speed for quality, or speed alone; `mmspec ls options` tells of
all settings."""
BESIDE = {
    "sceptic": " (what a method has to beat)",
    "oracle": " (what methods could reach at most)",
}
_Listed = tuple[Any, tuple[str, ...], list[tuple[str, ...]]]  # as JSON; columns and rows


def add_parser(commands: Any) -> None:
    listing = add_command(commands, "ls", _ls, "list methods, their parts and options, or models")
    listing.set_defaults(make=_markdown, action="ls methods")
    listing.add_argument(
        "what", choices=("models", "methods", "parts", "options"), help="what to list"
    )
    add_json(listing)
    listing.add_argument(
        "--markdown", action="store_true", help="of methods, who drafts and how a draft is judged"
    )
    add_into(listing, "ls methods")


def _ls(args: argparse.Namespace) -> int:
    if args.markdown or args.into is not None:
        if args.what != "methods":
            raise InputError(f"--markdown and --into are for methods, not for {args.what}")
        return put(args)
    if args.what == "models":
        from ..models.packaged import PACKAGED
        from ..pipelines.model_folders import shipped

        found = {name: str(folder) for name, folder in shipped().items()}
        found |= {name: model.told for name, model in PACKAGED.items()}
        return print_names(found, args.json)
    found, columns, rows = {"methods": _methods, "parts": _parts, "options": _options}[args.what]()
    if args.json:
        print(to_json(found, indent=2))
        return 0
    from ..eval.report.table import Cell, Row, Table

    lines = tuple(Row(name, tuple(map(Cell, texts))) for name, *texts in rows)
    print(Table("", columns, lines).aligned())
    if args.what == "methods":
        print(f"\n{_LEGEND}")
    return 0


def _methods() -> _Listed:
    found, rows = {}, list[tuple[str, ...]]()
    for name, method in presets().items():
        summary = "; for ".join(
            [method.summary, *(f"{n}: {o.summary}" for n, o in method.of.items())]
        )
        summary += BESIDE.get(method.role, "")
        resolved = {modality: SpecConfig(name).resolve(modality) for modality in method.serves}
        contracts = {kind: parts.contract for kind, parts in resolved.items()}
        needed = {kind: list(parts.needs) for kind, parts in resolved.items()}
        found[name] = {
            "summary": summary,
            "contracts": contracts,
            "needs": needed,
            "parts": {"drafter": method.drafter, "rule": method.rule, "length": method.length},
            "knob": method.knob,
            "sweep": list(method.sweep),
            "role": method.role,
        }
        needs = " or ".join(dict.fromkeys(filter(None, map(", ".join, needed.values()))))
        promised = [contracts.get(modality, "") for modality in MODALITIES]
        rows.append((name, *promised, needs, method.knob or "", summary))
    return found, ("method", *MODALITIES, "needs", "knob", "what it is"), rows


def _markdown(args: argparse.Namespace) -> str:
    """A row a method: who drafts, and how a draft is judged."""
    from ..eval.report.table import Cell, Row, Table

    rows = []
    for name, method in presets().items():
        kinds: list[tuple[Modality | None, Preset]] = [(None, method), *method.of.items()]
        for of, preset in kinds:
            parts = SpecConfig(name).resolve(of)
            by_name = parts.head is not None or not parts.drafts
            drafts = Cell(preset.summary if by_name else parts.drafter.summary)
            judges = Cell(parts.rule.summary if parts.drafts else "–")
            papers = [parts.head.paper if parts.head else parts.drafter.paper, parts.rule.paper]
            papers = papers if parts.drafts else [preset.paper]
            sources = Cell("; ".join(dict.fromkeys(filter(None, papers))))
            mark = "" if method.role == "method" else method.role
            rows.append(Row(f"{name}, for {of}" if of else name, (drafts, judges, sources), mark))
    columns = ("method", "who drafts", "how a draft is judged", "papers")
    return Table("", columns, tuple(rows), numbers=False).markdown().split("\n\n", 1)[1] + "\n"


def _parts() -> _Listed:
    found, rows = [], list[tuple[str, ...]]()
    for part in (part for kind in (*KINDS, "compressor", "cache") for part in parts(kind).values()):
        of = list(options_of(part.options))
        facts = {"kind": part.kind, "name": part.name, "options": of, "summary": part.summary}
        found.append({**facts, "paper": part.paper})
        rows.append((f"{part.kind} {part.name}", ", ".join(of), part.paper, part.summary))
    return found, ("part", "options", "paper", "what it does"), rows


def _options() -> _Listed:
    rows: list[tuple[str, ...]] = []
    for name, option in all_options().items():
        between = ", ".join(option.choices) or option.range
        told = text_of(option.default), between, ", ".join(readers(name)), option.help
        rows.append((name, *told))
    return SpecConfig.schema(), ("option", "default", "from, to", "read by", "what it is"), rows
