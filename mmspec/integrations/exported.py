"""Folders that other tools load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .. import __version__
from ..errors import InputError
from ..files import locked, write_atomic

REQUIRED = f"mmspec>={__version__}\n"  # the requirements file of each


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write a new folder's files by their paths in it.

    Raises:
        InputError: the folder holds something, or can't be had.
    """
    with locked(folder):
        if any(folder.iterdir()):
            raise InputError(f"{folder} holds files already; name another folder")
        for name, text in files.items():
            write_atomic(folder / name, text)
