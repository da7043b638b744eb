"""The models that ship with the package, in folders that any library reads.

Those in eight bits are unpacked once, into the user's cache: `$MMSPEC_CACHE`, or `mmspec` in
`$XDG_CACHE_HOME` or `~/.cache`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from .. import assets
from ..errors import InputError, reason
from ..progress import say
from .eight_bit import is_packed, unpack_folder

MODELS = Path(assets.__file__).resolve().parent / "models"


def embedded_folder(name: str) -> Path:
    """The folder of an embedded model, in the layout that its library writes.

    Raises:
        InputError: there is no such model, or the cache can't be written.
    """
    folder = MODELS / name
    if not folder.is_dir():
        raise InputError(f"no model {name!r} is embedded in this version; name a folder")
    return readable(folder)


def readable(folder: Path) -> Path:
    """The folder itself, or its copy in the cache if its weights are packed.

    Raises:
        InputError: a packed file is damaged, or the cache can't be written.
    """
    if not is_packed(folder):
        return folder

    def unpack(fresh: Path) -> None:
        shutil.copytree(folder, fresh)
        unpack_folder(fresh)

    return made_once(folder.resolve().name, _digest(folder), unpack)


def made_once(name: str, digest: str, make: Callable[[Path], None]) -> Path:
    """The folder of the cache that `make` fills, once for every digest of what it is made of.

    Raises:
        InputError: what it is made of is damaged, or the cache can't be written.
    """
    copy = cache() / f"{name}-{digest}"
    if copy.is_dir():
        return copy
    say(f"unpacking the model {name}, this once")
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=copy.parent) as scratch:
            fresh = Path(scratch) / copy.name
            make(fresh)
            try:
                fresh.rename(copy)
            except OSError:  # another process was faster
                if not copy.is_dir():
                    raise
    except (OSError, InputError) as error:
        if isinstance(error, InputError) and not isinstance(error.__cause__, OSError):
            raise  # a packed file is damaged
        raise InputError(
            f"can't unpack {name!r} into {copy.parent}: {reason(error)}; "
            "set MMSPEC_CACHE to a folder that can be written"
        ) from error
    return copy


def cache() -> Path:
    """The folder of unpacked copies."""
    if own := os.environ.get("MMSPEC_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mmspec"


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(folder)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
