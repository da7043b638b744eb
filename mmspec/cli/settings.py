"""Settings of a method as options of a command, derived from what parts declare."""

from __future__ import annotations

import argparse

from ..methods import Modality, SpecConfig, parse_method
from ..methods.config import PARTS, options_of_modality

_WHO = {
    "drafter": "who drafts",
    "rule": "who judges drafts: the acceptance rule",
    "length": "how far is drafted: the draft-length policy",
    "head": "the draft head in place of a draft model",
    "draft_compressor": "what shortens the pictures that a draft model is shown",
    "target_compressor": "what shortens the pictures that the target is shown",
}
_SEEING = ("head", "draft_compressor", "target_compressor")  # of models that see
_PREFIX = "setting_"


def add_settings(parser: argparse.ArgumentParser, *modalities: Modality) -> None:
    """Add an option for every part and every option of the modalities' methods."""
    group = parser.add_argument_group("settings of the method (default: its own)")
    for name in PARTS:
        if name not in _SEEING or "vlm" in modalities:
            group.add_argument(_flag(name), dest=_PREFIX + name, metavar="NAME", help=_WHO[name])
    declared = {n: o for kind in modalities for n, o in options_of_modality(kind).items()}
    for name, option in declared.items():
        between = ", ".join(option.choices) or option.range
        text = f"{option.help} ({between})" if between else option.help
        group.add_argument(_flag(name), dest=_PREFIX + name, metavar=option.letter, help=text)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def configured(args: argparse.Namespace) -> tuple[str, SpecConfig]:
    """The row's name and configuration of `--method`, with what is set by options of its own.

    Raises:
        InputError: the method is unknown, or a setting is wrong or not read.
    """
    given = {k.removeprefix(_PREFIX): v for k, v in vars(args).items() if k.startswith(_PREFIX)}
    settings = [f"{name}={value}" for name, value in given.items() if value is not None]
    if not settings:
        return parse_method(args.method)
    name, bracket, rest = args.method.partition("[")
    settings = [rest.removesuffix("]"), *settings] if bracket else settings
    return parse_method(f"{name}[{','.join(settings)}]")
