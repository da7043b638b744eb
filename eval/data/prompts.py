"""Prompts of a suite: the embedded list, or the user's in GenEval's format or as captions."""

from __future__ import annotations

from pathlib import Path

from ...errors import InputError
from ...files import read_lines
from ...worlds.shapes import Prompt
from ...worlds.shapes.vocabulary import SHAPES
from ..judges.coco import CLASSES
from ..suite import PROMPTS, Suite
from .dpg_files import read_dpg
from .geneval_files import read_metadata
from .records import read_records


def load_prompts(suite: Suite, path: Path | None) -> tuple[Prompt, ...]:
    """The prompts of a suite.

    Args:
        path: the user's file, in place of the suite's: `evaluation_metadata.jsonl` of GenEval, any
            JSON lines with a `prompt`, or a text file with a prompt a line.

    Raises:
        InputError: there is no file, or a line of it is not a prompt.
    """
    return tuple(prompt for file in prompt_files(suite, path) for prompt in _read(suite, file))


def prompt_files(suite: Suite, path: Path | None) -> list[Path]:
    """The user's file or, without one, the files that come with a suite.

    Raises:
        InputError: none does.
    """
    if path is not None:
        return [path]
    if not suite.prompts:
        raise InputError(f"suite {suite.name} has no prompts of its own: --prompts FILE")
    return [PROMPTS / name for name in suite.prompts]


def _read(suite: Suite, path: Path) -> tuple[Prompt, ...]:
    """The prompts of one file."""
    if "dpg" in suite.metrics:
        return tuple(Prompt(p.text) for p in read_dpg(path))
    if "geneval" in suite.metrics or suite.reference == "shapes":
        # the judge, and the scenes of a reference, need to know what has to be in the picture
        fields = ("prompt", "tag", "include", "exclude")
        lines = read_metadata(path, CLASSES if suite.judge == "mask2former" else SHAPES)
        return tuple(Prompt(**{k: line[k] for k in fields if k in line}) for line in lines)
    return read_prompts(path)


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a file of captions."""
    if path.suffix == ".txt":
        texts = [line.strip() for line in read_lines(path)]
        prompts = [Prompt(text) for text in texts if text]
    else:
        prompts = [Prompt(record.filled("prompt")) for record in read_records(path)]
    if not prompts:
        raise InputError(f"{path} holds no prompts")
    return tuple(prompts)
