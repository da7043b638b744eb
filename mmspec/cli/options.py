"""What the commands share: options, the pipeline that they name, folders, lists."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from ..devices import check_device
from ..errors import InputError
from ..files import read_object, to_json
from ..progress import say

if TYPE_CHECKING:
    from ..eval.modalities.modality import Modality

_LOADING = "loading the model"


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


def add_model(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """The options that `open_pipeline` reads; with `several`, a list of models."""
    text = "folder, hub id, or a name of `mmspec ls models` (default: the embedded one of its kind)"
    if several:
        parser.add_argument("--model", action="append", help=f"{text}; may be given again")
    else:
        parser.add_argument("--model", help=text)
    parser.add_argument("--device", default="cpu", help="such as cpu or cuda")


def add_background(parser: Any) -> None:
    """The option of what shows where a picture is transparent; else `picture.BACKGROUND`."""
    parser.add_argument(
        "--background",
        default="white",
        metavar="COLOR",
        help="behind transparent pictures, such as black or '#808080' (default: white)",
    )


def draws(model: str | None) -> str:
    """Which pipeline of pictures a model is of: "image" or "continuous".

    Raises:
        InputError: there is no such model, or what it is can't be read.
    """
    from ..pipelines.continuous.pipeline import ContinuousImagePipeline
    from ..pipelines.image.pipeline import ImagePipeline
    from ..pipelines.model_folders import locate

    index = locate(model, ImagePipeline.embedded) / "model_index.json"
    kind = read_object(index).get("_class_name") if index.exists() else None
    return "continuous" if kind == ContinuousImagePipeline.__name__ else "image"


def open_pipeline(args: argparse.Namespace) -> Any:
    """The image pipeline that the arguments name, on its device, without progress bars."""
    return open_pipelines(args, [args.model])[0]


def open_continuous(args: argparse.Namespace) -> Any:
    """As `open_pipeline`, of a model of continuous tokens."""
    say(_LOADING)
    from transformers.utils import logging

    from ..pipelines.continuous.pipeline import ContinuousImagePipeline

    logging.disable_progress_bar()
    check_device(args.device)
    pipe: Any = ContinuousImagePipeline.from_pretrained(args.model).to(args.device)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def open_vlm(device: str, model: str | None) -> Any:
    """The pipeline of a vision-language model, on a device; None: the embedded model."""
    say(_LOADING)
    from transformers.utils import logging

    from ..pipelines.vlm.pipeline import VlmPipeline

    logging.disable_progress_bar()
    check_device(device)
    pipe: Any = VlmPipeline.from_pretrained(model)
    return pipe.to(device)


def open_modality(args: argparse.Namespace, modality: Modality) -> Any:
    """As `open_pipeline`, of a modality of evaluation."""
    say(_LOADING)
    from transformers.utils import logging

    logging.disable_progress_bar()
    check_device(args.device)
    return modality.open(args.model, args.device, args.device_map)


def open_pipelines(args: argparse.Namespace, models: Sequence[str | None]) -> list[Any]:
    """As `open_pipeline`, of each of the models; None: the embedded one."""
    say(_LOADING)
    from transformers.utils import logging

    from ..pipelines.image.pipeline import ImagePipeline

    logging.disable_progress_bar()
    check_device(args.device)
    spread = getattr(args, "device_map", None)
    pipes: list[Any] = [ImagePipeline.from_pretrained(m, device_map=spread) for m in models]
    for pipe in pipes:
        if spread is None:
            pipe.to(args.device)
        pipe.set_progress_bar_config(disable=True)
    return pipes


def shown_on_terminal(pipe: Any) -> None:
    """A pipeline's own progress bars show on a terminal, and go when a call is done."""
    pipe.set_progress_bar_config(disable=None, leave=False)


def print_names(rows: dict[str, str], as_json: bool) -> int:
    """Names and what they are, for a reader or a program; returns the exit code."""
    if as_json:
        print(to_json(rows, indent=2))
    else:
        width = max(map(len, rows), default=0)
        for name, text in rows.items():
            print(f"{name:<{width}}  {text}")
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
