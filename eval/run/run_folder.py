"""The folder of a run: its settings, its samples and pictures, and who may write there."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...files import locked, read_object, to_json, write_atomic, write_json
from .job import Outcome
from .samples import Line, SampleLog


class RunFolder:
    """A folder that one run writes to, and a later one with the same settings goes on with.

    Units whose pictures were deleted since are done again.

    Args:
        path: of the folder, made if need be.
        settings: what the samples depend on; JSON.

    Raises:
        InputError: it holds a run of other settings, or another process writes there now.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        with ExitStack() as opening:
            opening.enter_context(locked(path))
            self._open(settings)
            self._held = opening.pop_all()
        self._clock = time.monotonic()

    def _open(self, settings: dict[str, Any]) -> None:
        path = self.path
        settings = json.loads(to_json(settings))  # as it will be read back
        file = path / "run.json"
        if not file.exists() and (path / "samples.jsonl").exists():
            raise InputError(f"{path} holds samples of an unknown run; choose another folder")
        self.log = SampleLog(path / "samples.jsonl")
        if not self.log.done:  # nothing that other settings could spoil
            write_json(file, settings)
            return
        found = read_object(file)
        differing = [k for k in {**settings, **found} if settings.get(k) != found.get(k)]
        if differing:
            raise InputError(
                f"{path} holds a run of other settings ({', '.join(differing)} differ); "
                "choose another folder"
            )
        lost = {line["unit"] for line in self.log.lines if not self._complete(line)}
        if lost:
            self.log.drop(lost)

    def _complete(self, line: Line) -> bool:
        """True if the pictures that a line names are there."""
        names = [line[what] for what in ("picture", "shown") if line.get(what) is not None]
        return all((self.path / name).is_file() for name in names)

    def add(self, outcome: Outcome) -> None:
        """Write a finished unit: its files first, so that every line's picture exists."""
        for name, content in outcome.files.items():
            write_atomic(self.path / name, content)
        now = time.monotonic()
        self.log.add(outcome.unit.key, outcome.lines, now - self._clock)
        self._clock = now

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
