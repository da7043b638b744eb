"""Compressors by name, and what each has to see."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..errors import InputError
from ..registry import check_name, resolve
from .base import Compressed


@dataclass(frozen=True)
class Method:
    """A compressor and its inputs.

    Attributes:
        reference: `"module:function"`.
        needs_attention: it needs `attention [B, N]`.
        needs_keys: it needs `keys [B, N, K]`.
        takes: further inputs that it can use.
        layer: of the vision tower, that its attention and keys are published for.
        mean_keys: keys are the mean over heads, or all heads side by side.
        adaptive: it can choose itself how many tokens stay.
    """

    reference: str
    needs_attention: bool = False
    needs_keys: bool = False
    takes: tuple[str, ...] = ()
    layer: int = -2
    mean_keys: bool = True
    adaptive: bool = False

    @property
    def uses(self) -> tuple[str, ...]:
        """Names of all inputs beside the features."""
        needed = {"attention": self.needs_attention, "keys": self.needs_keys}
        return (*(name for name, needs in needed.items() if needs), *self.takes)


_HERE = "mmspec.compress"
COMPRESSORS = {
    # attention of the language model; `fastv.last_token_attention` makes it
    "fastv": Method(f"{_HERE}.fastv:fastv", needs_attention=True),
    "visionzip": Method(f"{_HERE}.visionzip:visionzip", needs_attention=True, needs_keys=True),
    "divprune": Method(f"{_HERE}.divprune:divprune"),
    "tome": Method(f"{_HERE}.tome:tome", takes=("keys",)),
    "prumerge": Method(
        f"{_HERE}.prumerge:prumerge",
        needs_attention=True,
        needs_keys=True,
        layer=-1,
        mean_keys=False,
        adaptive=True,
    ),
    "pool": Method(f"{_HERE}.pool:pool", takes=("grid",)),
}


def method(name: str) -> Method:
    """The compressor called `name`.

    Raises:
        InputError: nothing has that name; the nearest one is suggested.
    """
    check_name("compressor", name, COMPRESSORS)
    return COMPRESSORS[name]


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
    chosen = method(name)
    given = {"attention": attention, "keys": keys, "grid": grid}
    inputs = {key: given[key] for key in chosen.uses}
    missing = [key for key in chosen.uses if given[key] is None and key not in chosen.takes]
    if missing:
        raise InputError(f"compressor {name!r} needs {' and '.join(missing)}; pass them too")
    if keep is None and not chosen.adaptive:
        raise InputError(f"compressor {name!r} doesn't choose how many tokens stay; pass keep")
    made: Compressed = resolve(chosen.reference)(features, keep, **inputs)
    return made
