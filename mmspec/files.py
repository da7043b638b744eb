"""Files of every room: read or refused in one line, written whole or not at all, by one at a time.

Imports neither torch nor anything else that is slow.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import lock_descriptor
from safetensors import SafetensorError

from .errors import InputError, reason


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, without a byte order mark.

    Raises:
        InputError: there is no such file, it is a folder, or no text.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError(f"can't read {path}: {reason(error)}") from error


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, as `read_text`.

    A line ends with a line feed alone: other separators of Unicode may stand within a text.
    """
    *lines, last = read_text(path).split("\n")
    return [*lines, last] if last else lines


def parse_json(text: str | bytes, where: str) -> Any:
    """The value of a JSON text.

    Args:
        where: file, or file and line, as the error names it.

    Raises:
        InputError: it is empty, no JSON, or nested deeper than data is.
    """
    if not text.strip():
        raise InputError(f"{where}: not JSON: it is empty")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if error.lineno > 1 else ""
        raise InputError(f"{where}{line}: not JSON: {error.msg}") from error
    except RecursionError as error:
        raise InputError(f"{where}: nested too deeply to be data") from error
    except ValueError as error:  # no UTF-8, or an integer of thousands of digits
        raise InputError(f"{where}: not JSON: {reason(error)}") from error


def read_json(path: Path) -> Any:
    """The value of a JSON file.

    Raises:
        InputError: it can't be read, or holds no JSON.
    """
    return parse_json(read_text(path), str(path))


def read_object(path: Path) -> dict[str, Any]:
    """The object of a JSON file.

    Raises:
        InputError: it can't be read, is no regular file (a pipe would be waited for), or holds no
            JSON object.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"can't read {path}: it is no regular file")
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError(f"{path} does not hold a JSON object")
    return value


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON that every program reads: a number that is none (NaN, infinity) is null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def to_loose_json(value: Any) -> str:
    """JSON for a reader that checks values itself: NaN and infinity stay, others are texts."""
    return json.dumps(value, default=str)


def write_json(path: Path, value: Any) -> Path:
    """Write an indented JSON file, whole or not at all; returns the path."""
    return write_atomic(path, to_json(value, indent=2) + "\n")


def write_atomic(path: Path, content: str | bytes) -> Path:
    """Write a file, whole or not at all; returns the path.

    Raises:
        InputError: it can't be written: the disk is full, or the folder is not the user's.
    """
    with atomic(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@contextmanager
def atomic(path: Path, part: Path | None = None) -> Iterator[Path]:
    """Another name to write a file under, which then is forced to disk and given its own.

    Whatever stops the block, `path` is as it was and nothing else stays.

    Args:
        path: of the file; its folder is made if need be.
        part: the other name, in the same folder, where the writer wants one of its own kind.

    Raises:
        InputError: the system refuses: the disk is full, say.
    """
    part = part or path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"can't write {path}: {reason(error)}") from error
    finally:
        with suppress(OSError):
            part.unlink()


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A folder to write files into, which then take their places in `folder`.

    Whatever stops the block, `folder` is as it was. Weights that lie there from an earlier save,
    cut up in another way, go.

    Raises:
        InputError: the system refuses: the disk is full, say.
    """
    part, made = folder / ".part", _missing(folder)
    try:
        part.mkdir(parents=True, exist_ok=True)
        yield part
        for home in [part, *(path for path in part.rglob("*") if path.is_dir())]:
            _replace_weights(home, folder / home.relative_to(part))
        mode = part.stat().st_mode & 0o666
        for file in [path for path in part.rglob("*") if path.is_file()]:
            file.chmod(mode)  # weights are written as their owner's alone
            file.replace(folder / file.relative_to(part))
    except (OSError, SafetensorError) as error:
        raise InputError(f"can't write {folder}: {reason(error)}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
        _remove_empty(made)


@contextmanager
def locked(folder: Path) -> Iterator[Path]:
    """A folder that this process alone writes to, of all that ask; made if need be.

    The lock is on the folder itself, so filelock's own classes, which leave a file, do not serve.
    It ends with the process that holds it, however that ends. A folder that was made for it, and in
    which nothing was written, goes again.

    Raises:
        InputError: another process holds it, or the folder can't be had.
    """
    made = _missing(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise InputError(f"can't write to {folder}: {reason(error)}") from error
    try:
        _lock(handle, folder)
        yield folder
    finally:
        _remove_empty(made)
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    """Take the lock; on a file system that has none, go on without it."""
    try:
        held = lock_descriptor(handle, blocking=False)
    except OSError as error:
        held = error.errno in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
        if not held:
            raise InputError(f"can't lock {folder}: {reason(error)}") from error
    if not held:
        raise InputError(f"another run writes to {folder}; wait for it, or name another folder")


def _missing(folder: Path) -> list[Path]:
    """A folder and those around it that are not there yet, the innermost first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _remove_empty(folders: list[Path]) -> None:
    with suppress(OSError):  # the first that holds something
        for folder in folders:
            folder.rmdir()


def _replace_weights(fresh: Path, old: Path) -> None:
    """Make a place for a folder's files: of weights none is left that is not among them."""
    old.mkdir(exist_ok=True)
    if not any(fresh.glob("*.safetensors")):
        return
    for stale in old.glob("*.safetensors*"):
        if not (fresh / stale.name).exists():
            stale.unlink()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
