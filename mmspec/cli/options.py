"""Shared parts of the commands: options, the pipeline that they name, folders, lists."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ..devices import check_device
from ..errors import InputError
from ..files import read_object, to_json
from ..methods import PIPELINES, Modality, SpecConfig, parse_method
from ..methods.config import PARTS, options_of_modality
from ..methods.names import name_of, settings_of
from ..methods.registry import parts
from ..progress import hide_library_bars, say
from ..registry import resolve

_WHO = {
    "drafter": "who drafts",
    "rule": "who judges drafts: the acceptance rule",
    "length": "how far is drafted: the draft-length policy",
    "head": "the draft head in place of a draft model",
    "draft_compressor": "what shortens the pictures that a draft model is shown",
    "target_compressor": "what shortens the pictures that the target is shown",
    "draft_cache": "which of a prompt's entries stay in a draft model's cache",
    "target_cache": "which of a prompt's entries stay in the target's cache",
    "draft_weights": "how weights of what drafts are rounded, on a processor",
    "target_weights": "how weights of the target are rounded, on a processor",
}
_PREFIX = "setting_"


def seed(text: str) -> int:
    """An option's value as a seed."""
    if text.isascii() and text.isdigit() and int(text) < 2**63:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be an integer from 0 to 2**63 - 1, not {text!r}")


def widths(text: str) -> tuple[int, ...]:
    """An option's value as numbers."""
    try:
        return tuple(int(width) for width in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be integers such as 3,2,1, not {text!r}") from None


def names(text: str) -> tuple[str, ...]:
    """An option's value as names."""
    return tuple(name.strip() for name in text.split(","))


def add_command(commands: Any, name: str, run: Callable[..., int], text: str) -> Any:
    """The parser of a command that `run` runs; `text` is its help."""
    made = commands.add_parser(name, help=text)
    made.set_defaults(run=run)
    add_quiet(made)
    return made


def add_json(parser: Any, instead: str = "a table") -> None:
    """The option of every command that tells something that a program may read."""
    parser.add_argument("--json", action="store_true", help=f"print JSON, not {instead}")


def add_quiet(parser: Any) -> None:
    """The option of every command, and of the groups and the program in front of it."""
    text = "show no progress on the terminal"
    parser.add_argument("--quiet", action="store_true", default=argparse.SUPPRESS, help=text)


def add_pairs(parser: Any, flag: str, form: str, text: str) -> argparse.Action:
    """An option that may be repeated, each time with a pair of a form such as NAME=PATH."""

    def pair(given: str) -> tuple[str, str]:
        name, _, value = given.partition("=")
        if not name or not value:
            raise argparse.ArgumentTypeError(f"must be {form}, not {given!r}")
        return name, value

    made: argparse.Action = parser.add_argument(
        flag, action="append", type=pair, default=[], metavar=form, help=text
    )
    return made


def check_range(args: argparse.Namespace, low: int, high: int | None, *options: str) -> None:
    """Raise an `InputError` for a number that is given and out of range; a high of None: any."""
    for option in options:
        value, flag = getattr(args, option), f"--{option.replace('_', '-')}"
        if value is not None and not low <= value <= (high or value):
            wanted = f"at least {low}" if high is None else f"from {low} to {high}"
            raise InputError(f"{flag} must be {wanted}, not {value}")


def add_runs(parser: argparse.ArgumentParser, makes: str, what: str, paired: int = 0) -> None:
    """The options of how often something is made; `paired`: the default number with --compare."""
    usual = f" (default: 1, with --compare {paired})" if paired else ""
    parser.add_argument("--compare", action="store_true", help=f"also {makes} plainly, in pairs")
    parser.add_argument(
        "-n",
        f"--num-{what}s",
        type=int,
        default=None if paired else 1,
        help=f"each with a seed of its own{usual}",
    )
    parser.add_argument(
        "--seed", type=seed, default=0, help=f"of the first {what}; each further one has the next"
    )
    add_json(parser)


def methods_of(args: argparse.Namespace, name: str, config: SpecConfig) -> dict[str, SpecConfig]:
    """Methods that a command runs, by name; with --compare plain decoding is the first.

    Plain decoding with settings is told from it by them.
    """
    if not args.compare:
        return {name: config}
    plain = SpecConfig("plain")
    if name == "plain" and config != plain:
        name = name_of(config.method, settings_of(config))
    return {"plain": plain, name: config}


def add_model(
    parser: argparse.ArgumentParser, several: bool = False, usual: str | None = None
) -> argparse.Action:
    """The options that `open_pipeline` reads, that of the model returned.

    With `several`, a list of models; `usual` is the default; None: the embedded model.
    """
    default = usual or "the embedded one of its kind"
    text = f"folder, hub id, or a name of `mmspec ls models` (default: {default})"
    parser.add_argument("--device", default="cpu", help="such as cpu or cuda")
    if several:
        more = f"{text}; may be given again"
        return parser.add_argument("--model", action="append", help=more)
    return parser.add_argument("--model", default=usual, help=text)


def add_top_p(parser: argparse.ArgumentParser) -> None:
    """The option of the share of the likeliest tokens that are drawn from."""
    text = "draw from the likeliest tokens of this share"
    parser.add_argument("--top-p", type=float, default=1.0, help=text)


def add_background(parser: Any) -> None:
    """The option of what shows where a picture is transparent; else `picture.BACKGROUND`."""
    parser.add_argument(
        "--background",
        default="white",
        metavar="COLOR",
        help="behind transparent pictures, such as black or '#808080' (default: white)",
    )


def draws(model: str | None) -> str:
    """Pipeline of pictures that a model belongs to: "image" or "continuous"."""
    from ..pipelines.continuous.pipeline import ContinuousImagePipeline
    from ..pipelines.image.pipeline import ImagePipeline
    from ..pipelines.model_folders import locate

    index = locate(model, ImagePipeline.embedded) / "model_index.json"
    kind = read_object(index).get("_class_name") if index.exists() else None
    return "continuous" if kind == ContinuousImagePipeline.__name__ else "image"


def open_pipeline(args: argparse.Namespace, kind: Modality = "image") -> Any:
    """The pipeline of a modality that the arguments name, on its device, without progress bars."""
    prepare(args)
    spread = getattr(args, "device_map", None)
    made = resolve(PIPELINES[kind].reference).from_pretrained(args.model, device_map=spread)
    pipe = made if spread is not None else made.to(args.device)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def prepare(args: argparse.Namespace) -> None:
    """Prepare to load a model: check its device, and hide the libraries' own progress bars."""
    say("loading the model")
    hide_library_bars()
    check_device(args.device)


def print_names(rows: dict[str, str], as_json: bool) -> int:
    """Names and what they are, for a reader or a program; returns the exit code."""
    if as_json:
        print(to_json(rows, indent=2))
    else:
        width = max(map(len, rows), default=0)
        for name, text in rows.items():
            print(f"{name:<{width}}  {text}")
    return 0


def print_list(what: str, found: Iterable[str], as_json: bool, form: str = "{}") -> int:
    """A list, a line each in that form, or as `{what: [...]}`; returns the exit code."""
    told = list(found)
    print(to_json({what: told}, indent=2) if as_json else "\n".join(map(form.format, told)))
    return 0


def folder(path: Path) -> Path:
    """The path of a folder that can be written to: tried before any long work, leaving no trace.

    Processes that train together may try it at the same time.
    """
    try:
        there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise InputError(f"can't write to {path}: {error.strerror}") from error
    return path


def add_settings(parser: argparse.ArgumentParser, *modalities: Modality) -> None:
    """Add an option for every part and every option of the modalities' methods."""
    group = parser.add_argument_group("settings of the method (default: its own)")
    for name in PARTS:
        known = parts(name.split("_")[-1]).values()
        if any({*getattr(part, "serves", modalities)} & {*modalities} for part in known):
            group.add_argument(_flag(name), dest=_PREFIX + name, metavar="NAME", help=_WHO[name])
    declared = {n: o for kind in modalities for n, o in options_of_modality(kind).items()}
    for name, option in declared.items():
        between = ", ".join(option.choices) or option.range
        text = f"{option.help} ({between})" if between else option.help
        group.add_argument(_flag(name), dest=_PREFIX + name, metavar=option.letter, help=text)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def configured(args: argparse.Namespace) -> tuple[str, SpecConfig]:
    """The row's name and configuration of `--method`, with what is set by options of its own."""
    given = {k.removeprefix(_PREFIX): v for k, v in vars(args).items() if k.startswith(_PREFIX)}
    settings = [f"{name}={value}" for name, value in given.items() if value is not None]
    if not settings:
        return parse_method(args.method)
    name, bracket, rest = args.method.partition("[")
    settings = [rest.removesuffix("]"), *settings] if bracket else settings
    return parse_method(f"{name}[{','.join(settings)}]")
