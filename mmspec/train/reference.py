"""Reference of a training: the model beside which it learns, as it was when the run began."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

CHECKPOINT = "checkpoint.pt"


def kept_reference(out: Path, folder: Path) -> Path:
    """Folder to read a run's reference from: what a run exports may take the place of its own.

    A run that begins reads `folder` and keeps a copy beside its checkpoints; one that goes on reads
    the copy.

    Args:
        out: of the run.
        folder: of the reference; one that is missing is left to its reader.
    """
    kept = out / "reference"
    if (out / CHECKPOINT).exists():
        return kept if kept.is_dir() else folder
    if folder.is_dir():
        part = out / f"reference.{os.getpid()}"  # several processes may each make one
        try:
            shutil.copytree(folder, part, dirs_exist_ok=True)
            shutil.rmtree(kept, ignore_errors=True)  # of a run whose checkpoint was deleted
            with suppress(OSError):  # another process was there first
                part.rename(kept)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder
