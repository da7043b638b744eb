"""The samples of a run on disk: a line each, complete units only, whatever stops the program."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ...errors import InputError
from ..files import write_atomic

Line = dict[str, Any]


def output_tokens(counters: dict[str, Any]) -> int:
    """Tokens that a call put out, from the counters in its line, at least 1.

    Continuous tokens are rows; what these emit are denoising steps.
    """
    emitted: list[int] = counters["emitted"]
    return max(1, len(emitted) if "pictures" in counters else sum(emitted))


class SampleLog:
    """`samples.jsonl`: the lines of each unit of work, then one that says that the unit is whole.

    A unit's lines are written at once and forced to disk. A program that is killed leaves at most
    the beginning of one unit, which the next start drops and does again: nothing is lost and
    nothing counts twice.

    Args:
        path: of the file, made at the first unit.

    Raises:
        InputError: a line, other than a torn last one, is not what this class writes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []
        self.done: set[str] = set()
        if path.exists():
            self._load()

    def add(self, unit: str, lines: list[Line]) -> None:
        """Write a unit that is finished."""
        if unit in self.done:
            raise ValueError(f"unit {unit} is there already")
        lines = [{"unit": unit, **line} for line in lines]
        text = "".join(json.dumps(line) + "\n" for line in [*lines, _end(unit)])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self.done.add(unit)
        self.lines += lines

    def of(self, kind: str) -> list[Line]:
        """The lines of one kind, in the order of the file."""
        return [line for line in self.lines if line["kind"] == kind]

    def _load(self) -> None:
        pending: dict[str, list[Line]] = {}
        texts = self.path.read_bytes().split(b"\n")
        for number, text in enumerate(texts, 1):
            if not text:
                continue
            try:
                line = json.loads(text)
                unit, kind = line["unit"], line["kind"]
            except (ValueError, TypeError, KeyError) as error:
                if number == len(texts):  # no newline after it: the program was killed here
                    continue
                raise InputError(f"{self.path}, line {number} is not a sample: {error}") from error
            if kind == "end":
                self.done.add(unit)
                self.lines += pending.pop(unit, [])
            else:
                pending.setdefault(unit, []).append(line)
        kept = [text + b"\n" for text in texts if text and self._whole(text)]
        if b"".join(kept) != b"\n".join(texts):
            write_atomic(self.path, b"".join(kept))

    def _whole(self, text: bytes) -> bool:
        try:
            return json.loads(text)["unit"] in self.done
        except ValueError:
            return False


def _end(unit: str) -> Line:
    return {"unit": unit, "kind": "end"}
