"""Text files as users have them: UTF-8, with or without a byte order mark."""

from __future__ import annotations

from pathlib import Path

from .errors import InputError, reason


def read_text(path: Path, what: str = "") -> str:
    """The text of a file; a byte order mark in front of it is no part of it.

    Args:
        what: what errors call the file, beside its path.

    Raises:
        InputError: it can't be read, or is no UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        name = f"{what} {path}".strip()
        raise InputError(f"can't read {name}: {reason(error)}") from error
