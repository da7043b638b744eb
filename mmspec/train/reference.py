"""Reference of a training: the model beside which it learns, as it was when the run began."""

from __future__ import annotations

import os
import shutil
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
        return kept.absolute() if kept.is_dir() else folder
    if folder.is_dir():
        part = out / f"reference.{os.getpid()}"  # several processes may each make one
        shutil.copytree(folder, part)
        shutil.rmtree(kept, ignore_errors=True)  # of a run whose checkpoint was deleted
        try:
            part.rename(kept)
        except OSError:  # another process was there first
            shutil.rmtree(part)
    return folder
