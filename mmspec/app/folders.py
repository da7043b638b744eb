"""Paths of this machine that a visitor may name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..hosts import is_loopback
from ..models.embedded import cache


@dataclass(frozen=True)
class Folders:
    """The rule for paths that are typed into the page.

    Args:
        root: paths are inside this folder, wherever links lead; None: see `anywhere`.
        anywhere: without a root, visitors on this very machine may name any path; others none.
    """

    root: Path | None = None
    anywhere: bool = False

    @property
    def offered(self) -> bool:
        """True if the page has a field for paths."""
        return self.root is not None or self.anywhere

    def find(self, text: str, request: Any = None) -> Path:
        """The file or folder that a visitor names; one behind a proxy is not on this machine.

        Raises:
            InputError: there is none, or it is not for this visitor. The message is the same for
                what is missing and what is outside of the root.
        """
        if self.root is not None:
            root = self.root.resolve()
            found = _resolved(root / text)
            if found is None or not found.is_relative_to(root):
                raise InputError(f"there is no {text!r} in the folder that this demo may read")
            return found
        if not self.anywhere or not _is_local(request):
            raise InputError("this demo opens no paths; choose one of the models in the list")
        found = _resolved(Path(text))
        if found is None:
            raise InputError(f"there is no {text!r} on this machine")
        return found


@contextmanager
def told_as(text: str, path: Path | None) -> Iterator[None]:
    """Rewrite errors: they name what a visitor typed or chose, not the path that it stands for or
    its unpacked copy."""
    try:
        yield
    except InputError as error:
        told = str(error) if path is None else str(error).replace(str(path), text)
        kept = re.escape(str(cache()))
        told = re.sub(rf"{kept}/\S*?-[0-9a-f]{{16}}\b", lambda _: text, told)
        raise InputError(re.sub(kept, "the cache", told)) from error


def _resolved(path: Path) -> Path | None:
    try:
        return path.expanduser().resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # missing, a loop of links, no path at all
        return None


def _is_local(request: Any) -> bool:
    client = getattr(request, "client", None)
    forwarded = {"forwarded", "x-forwarded-for", "x-real-ip"}
    if client is None or forwarded & {name.lower() for name in request.headers}:
        return False
    return is_loopback(client.host)
