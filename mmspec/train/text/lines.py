"""Files of lines with a text each."""

from __future__ import annotations

from pathlib import Path

from ...errors import InputError
from ...files import parse_json, read_lines


def read_texts(path: Path, name: str) -> list[str]:
    """The texts of a file of lines `{name: text}`; empty lines are left out.

    Raises:
        InputError: a line is no such object, or its text is empty.
    """
    found = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        row = parse_json(line, where)
        text = row.get(name) if isinstance(row, dict) else None
        if not isinstance(text, str) or not text.strip():
            raise InputError(f'{where} must be {{"{name}": text}}, not {line:.40}')
        found.append(text)
    return found
