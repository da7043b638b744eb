"""The folder of a run: its settings, its samples and pictures, and who may write there."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from ...errors import InputError
from ..files import write_atomic
from .job import Outcome
from .samples import SampleLog


class RunFolder:
    """A folder that one run writes to, and a later one with the same settings goes on with.

    Args:
        path: of the folder, made if need be.
        settings: what the samples depend on; JSON.

    Raises:
        InputError: it holds a run of other settings, or another process writes there now.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(path)
        try:
            self._open(settings)
        except InputError:
            os.close(self._lock)
            raise

    def _open(self, settings: dict[str, Any]) -> None:
        path = self.path
        settings = json.loads(json.dumps(settings))  # as it will be read back
        file = path / "run.json"
        if not file.exists() and (path / "samples.jsonl").exists():
            raise InputError(f"{path} holds samples of an unknown run; choose another folder")
        self.log = SampleLog(path / "samples.jsonl")
        if self.log.done:
            self._check(settings, json.loads(file.read_text()))
        else:  # nothing that other settings could spoil
            write_atomic(file, json.dumps(settings, indent=2) + "\n")

    def add(self, outcome: Outcome) -> None:
        """Write a finished unit: its files first, so that every line's picture exists."""
        for name, content in outcome.files.items():
            write_atomic(self.path / name, content)
        self.log.add(outcome.unit.key, outcome.lines)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._lock)

    def _check(self, wanted: dict[str, Any], found: dict[str, Any]) -> None:
        keys = [k for k in {**wanted, **found} if wanted.get(k) != found.get(k)]
        if keys:
            raise InputError(
                f"{self.path} holds a run of other settings ({', '.join(keys)} differ); "
                "choose another folder"
            )


def _lock(folder: Path) -> int:
    """A lock on the folder itself: it ends with the process that holds it, however that ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise InputError(f"another run writes to {folder}; wait for it") from error
    return handle
