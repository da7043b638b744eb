"""`mmspec completion`: the shell completes commands, options and names."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from ..errors import absent
from ..methods import MODALITIES, serving
from .options import add_command

SHELLS = ("bash", "zsh", "fish")
_ASKED = "_ARGCOMPLETE"  # the environment's sign that a shell asks


def add_parser(commands: Any) -> None:
    text = 'print what a shell needs to complete commands: eval "$(mmspec completion bash)"'
    completion = add_command(commands, "completion", _completion, text)
    completion.add_argument("shell", choices=SHELLS, help="the shell")


def _completion(args: argparse.Namespace) -> int:
    print(_argcomplete().shellcode(["mmspec"], shell=args.shell))
    return 0


def answer(build: Callable[[], argparse.ArgumentParser]) -> None:
    """Answer a shell that asks how a command line may go on, and end; else do nothing."""
    if _ASKED not in os.environ:
        return
    parser = build()
    for action in _actions(parser):
        if "--method" in action.option_strings and action.choices is None:
            action.completer = _methods  # type: ignore[attr-defined]  # argcomplete reads it
    _argcomplete().autocomplete(parser)


def _argcomplete() -> Any:
    try:
        import argcomplete
    except ModuleNotFoundError as error:
        raise absent("completion needs argcomplete", "completion") from error
    return argcomplete


def _methods(**_: Any) -> list[str]:
    """Names of methods of any modality."""
    return sorted({name for modality in MODALITIES for name in serving(modality)})


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The options of a parser and of its commands."""
    found = []
    for action in parser._actions:
        found.append(action)
        if isinstance(action, argparse._SubParsersAction):
            for inner in set(action.choices.values()):
                found += _actions(inner)
    return found
