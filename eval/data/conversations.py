"""Conversations of text benchmarks: what a user says, turn by turn."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from ...errors import InputError
from ..suite import Suite
from .prompts import prompt_files
from .records import Record, read_records


@dataclass(frozen=True)
class Conversation:
    """Turns of a user; every one but the first follows the answer to the one before it.

    Attributes:
        turns: one or more.
        tag: its category; "": it has none.
        id: as its file names it; "": it does not.
    """

    turns: tuple[str, ...]
    tag: str = ""
    id: str = ""

    @property
    def prompt(self) -> str:
        """The first turn."""
        return self.turns[0]

    def metadata(self) -> dict[str, Any]:
        return asdict(self)


def load_conversations(suite: Suite, path: Path | None) -> tuple[Conversation, ...]:
    """The conversations of a suite, or the user's; see `read_conversations`."""
    return tuple(one for file in prompt_files(suite, path) for one in read_conversations(file))


def read_conversations(path: Path) -> tuple[Conversation, ...]:
    """The conversations of a file, categories in turn, so that the first few hold all of them.

    Args:
        path: JSON lines as of MT-bench and Spec-Bench: `turns`, a list of texts, and where they are
            known `category` and `question_id`.

    Raises:
        InputError: a line is no conversation, or there is none.
    """
    by_tag: dict[str, list[Conversation]] = {}
    for record in read_records(path):
        one = _conversation(record)
        by_tag.setdefault(one.tag, []).append(one)
    if not by_tag:
        raise InputError(f"{path} holds no conversations")
    in_turn = chain.from_iterable(zip_longest(*by_tag.values()))
    return tuple(one for one in in_turn if one is not None)


def _conversation(record: Record) -> Conversation:
    record.value("turns")
    turns = record.texts("turns")
    if not turns or not all(turn.strip() for turn in turns):
        raise record.error("'turns' must be a list of texts, none of them empty")
    known = record.fields.get("question_id") is not None
    name = record.identity("question_id") if known else ""
    return Conversation(turns, record.text("category", ""), name)
