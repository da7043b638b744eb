"""The samples of a run on disk: a line each, complete units only, whatever stops the program."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ...errors import InputError, reason
from ...files import parse_json, to_json, write_atomic

Line = dict[str, Any]


def output_tokens(counters: dict[str, Any]) -> int:
    """Tokens that a call put out, from the counters in its line, at least 1.

    Continuous tokens are rows; what these emit are denoising steps.
    """
    emitted: list[int] = counters["emitted"]
    return max(1, len(emitted) if "pictures" in counters else sum(emitted))


class SampleLog:
    """`samples.jsonl`: the lines of each unit of work, then one that says that the unit is whole.

    A unit's lines are written at once and forced to disk, and the last one tells their number and
    checksum. A program that is killed leaves at most the beginning of one unit, which the next
    start drops and does again: nothing is lost and nothing counts twice.

    Args:
        path: of the file, made at the first unit.

    Raises:
        InputError: a line, other than a torn last one, is not what this class writes, or a unit
            lacks one, or has one twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._load()

    def add(self, unit: str, lines: list[Line], seconds: float | None = None) -> None:
        """Write a unit that is finished.

        Args:
            seconds: that it took.

        Raises:
            InputError: it can't be written: the disk is full, say. The file is as it was.
        """
        if unit in self.ends:
            raise ValueError(f"unit {unit} is there already")
        texts = [to_json({"unit": unit, **line}) for line in lines]
        end = {
            "unit": unit,
            "count": len(texts),
            "checksum": _checksum(text.encode() for text in texts),
            "seconds": seconds,
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "kind": "end",
        }
        self._append("".join(text + "\n" for text in [*texts, to_json(end)]))
        self.ends[unit] = end
        self.lines += [parse_json(text, unit) for text in texts]  # as they will be read back

    def drop(self, units: Iterable[str]) -> None:
        """Take units out, to be done again."""
        left = read_log(self.path, without=units)
        write_atomic(self.path, left.content)
        self._load()

    @property
    def done(self) -> set[str]:
        """The units that are whole."""
        return set(self.ends)

    @property
    def seconds(self) -> float | None:
        """Seconds of all units together; None: not all of them tell."""
        spent = [end["seconds"] for end in self.ends.values() if end.get("seconds") is not None]
        return sum(spent) if spent and len(spent) == len(self.ends) else None

    @property
    def date(self) -> str | None:
        """Date of the last unit, in ISO 8601; None: none tells."""
        return max((end["date"] for end in self.ends.values() if end.get("date")), default=None)

    def of(self, kind: str) -> list[Line]:
        """The lines of one kind, in the order of the file."""
        return [line for line in self.lines if line["kind"] == kind]

    def _load(self) -> None:
        found = read_log(self.path)
        for number, line in found.lines:
            if "unit" not in line:
                raise bad_line(self.path, number, "no unit")
        self.ends = found.ends
        self.lines = [line for _, line in found.lines] if found.ends else []
        if found.torn:
            write_atomic(self.path, found.content)

    def _append(self, text: str) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, size)
            raise InputError(f"can't write {self.path}: {reason(error)}") from error


@dataclass
class LogFile:
    """Content of a file of samples.

    Attributes:
        lines: of whole units, with their numbers; of a file that marks the end of none, all.
        ends: the line that ends each whole unit, by the unit's name.
        content: the file without what a killed program left.
        torn: whether there is such a rest.
    """

    lines: list[tuple[int, Line]] = field(default_factory=list)
    ends: dict[str, Line] = field(default_factory=dict)
    content: bytes = b""
    torn: bool = False


def read_log(path: Path, without: Iterable[str] = ()) -> LogFile:
    """A file of samples; without the file, none.

    Files of earlier versions tell neither number nor checksum of a unit's lines.

    Args:
        without: units that are passed over.

    Raises:
        InputError: it can't be read, a line other than a torn last one is no object with a kind,
            or a unit has a line too few, too many, or of another content.
    """
    found, left_out = LogFile(), set(without)
    pending: dict[str | None, list[int]] = {}
    texts = _texts(path)
    lines: dict[int, Line] = {}
    kept: list[bytes] = []
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            lines[number] = line = _line(path, number, text)
        except InputError:
            if number == len(texts):  # no newline after it: the program was killed here
                break
            raise
        unit = line.get("unit")
        if line["kind"] != "end":
            pending.setdefault(unit, []).append(number)
            continue
        if unit in found.ends:
            raise _damaged(path, f"unit {unit} ends twice, in line {number} again")
        found.ends[str(unit)] = line
        own = pending.pop(unit, [])
        _check(path, line, [texts[n - 1] for n in own])
        if unit not in left_out:
            found.lines += [(n, lines[n]) for n in own]
            kept += [texts[n - 1] + b"\n" for n in (*own, number)]
    for unit, own in pending.items():
        if unit in found.ends:
            raise _damaged(path, f"line {own[0]} of unit {unit} stands behind the unit's end")
    found.ends = {unit: end for unit, end in found.ends.items() if unit not in left_out}
    found.content = b"".join(kept)
    found.torn = found.content != b"\n".join(texts)
    if not found.ends:
        found.lines = [(n, line) for n, line in lines.items() if line["kind"] != "end"]
    return found


def bad_line(path: Path, number: int, what: str) -> InputError:
    """The error of a line that is no sample."""
    return InputError(f"{path}:{number}: not a sample: {what}; run the suite again")


def _damaged(path: Path, what: str) -> InputError:
    return InputError(f"{path}: {what}; take the unit's lines out, and the run does it again")


def _texts(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"can't read {path}: {reason(error)}") from error


def _line(path: Path, number: int, text: bytes) -> Line:
    line = parse_json(text, f"{path}:{number}")
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
        raise bad_line(path, number, "an object with a kind is expected")
    if not isinstance(line.get("unit"), str | None):
        raise bad_line(path, number, "unit must be text")
    for name in ("seconds", "decode_seconds") if line["kind"] == "speed" else ():
        value = line.get(name, 0.0)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise bad_line(path, number, f"{name} must be a number, not {value!r}")
    return line


def _check(path: Path, end: Line, texts: list[bytes]) -> None:
    """Raise an `InputError` unless a unit's lines are those that were written."""
    unit, count, checksum = (end.get(name) for name in ("unit", "count", "checksum"))
    if count is not None and len(texts) != count:
        what = "lacks" if len(texts) < count else "has surplus"
        raise _damaged(path, f"unit {unit} {what} lines: {len(texts)}, and {count} were written")
    if checksum is not None and _checksum(texts) != checksum:
        raise _damaged(path, f"the lines of unit {unit} are not those that were written")


def _checksum(texts: Iterable[bytes]) -> str:
    """Checksum of a unit's lines, in their order."""
    return hashlib.sha256(b"\n".join(texts)).hexdigest()[:16]
