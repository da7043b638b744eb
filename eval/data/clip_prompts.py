"""Prompts of clips with what must be in them: the clip world's list, or lines of one's own."""

from __future__ import annotations

from pathlib import Path

from ...errors import InputError
from ...worlds.video_world.prompts import ClipPrompt, caption, roles_of
from ...worlds.video_world.vocabulary import KINDS
from ..modalities.base import PromptItem
from ..suite import Suite
from .prompts import load_prompts, prompt_files
from .records import Record, read_records


def load_clip_prompts(suite: Suite, path: Path | None) -> tuple[PromptItem, ...]:
    """The prompts of a suite, or the user's: with facts that a judge knows, or else captions."""
    if not suite.metrics:
        return load_prompts(suite, path)
    return tuple(p for file in prompt_files(suite, path) for p in read_clip_prompts(file))


def read_clip_prompts(path: Path) -> tuple[ClipPrompt, ...]:
    """The prompts of a file of JSON lines, see `ClipPrompt`.

    Raises:
        InputError: there is no file, no line, or a line whose facts do not say its prompt.
    """
    found = tuple(_prompt(record) for record in read_records(path))
    if not found:
        raise InputError(f"{path} holds no prompts")
    return found


def _prompt(record: Record) -> ClipPrompt:
    text, tag = record.text("prompt"), record.text("tag")
    if tag not in KINDS:
        raise record.error(f"the tag must be one of {', '.join(KINDS)}, not {tag!r}")
    include = [dict(child.fields) for child in record.children("include")]
    try:
        told = caption(include)
        roles_of(include)
    except (KeyError, IndexError, TypeError, ValueError, StopIteration) as error:
        raise record.error(f"include holds no facts of a clip: {error!r}") from error
    if told != text:
        raise record.error(f"its facts say {told!r}, not {text!r}")
    return ClipPrompt(text, tag, include)
