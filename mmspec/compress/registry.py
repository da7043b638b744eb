"""Compressors by name, and what each has to see."""

from __future__ import annotations

from torch import Tensor

from ..errors import InputError
from ..methods.part import Compressor
from ..methods.registry import parts
from ..registry import check_name, resolve
from .base import Compressed


def compressor(name: str) -> Compressor:
    """The compressor called `name`.

    Raises:
        InputError: nothing has that name; the nearest one is suggested.
    """
    check_name("compressor", name, parts("compressor"))
    found: Compressor = parts("compressor")[name]
    return found


def compress(
    name: str,
    features: Tensor,
    keep: int | None = None,
    *,
    attention: Tensor | None = None,
    keys: Tensor | None = None,
    grid: tuple[int, int] | None = None,
) -> Compressed:
    """Compress visual tokens by the method called `name`; it ignores what it has no use for.

    Args:
        features: `[B, N, C]`.
        keep: tokens K left; None: the method chooses.
        attention: `[B, N]`.
        keys: `[B, N, K]`.
        grid: rows and columns of the tokens; None: a square.

    Raises:
        InputError: no such method, something it needs is missing, or the inputs don't fit.
    """
    chosen = compressor(name)
    given = {"attention": attention, "keys": keys, "grid": grid}
    inputs = {key: given[key] for key in chosen.uses}
    missing = [key for key in chosen.uses if given[key] is None and key not in chosen.takes]
    if missing:
        raise InputError(f"compressor {name!r} needs {' and '.join(missing)}; pass them too")
    if keep is None and not chosen.adaptive:
        raise InputError(f"compressor {name!r} doesn't choose how many tokens stay; pass keep")
    made: Compressed = resolve(str(chosen.reference))(features, keep, **inputs)
    return made
