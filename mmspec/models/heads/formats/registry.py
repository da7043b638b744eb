"""The format of a folder, told by its configuration and the names of its tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from ....errors import InputError, reason
from ...bounded_init import bounded_init, check_layers
from ..published.head import PublishedHead
from .compressing import is_flash, is_specvlm, read_flash, read_specvlm
from .dflash import is_deepspec, is_dflash, read_dflash
from .eagle import (
    is_eagle,
    is_msd,
    is_vispec,
    read_eagle,
    read_msd,
    read_vispec,
)
from .eagle3 import is_eagle3, read_eagle3
from .falcon import is_falcon, read_falcon
from .files import HeadFiles
from .hydra import is_hydra, read_hydra
from .longspec import is_longspec, read_longspec
from .medusa import is_medusa, read_medusa
from .mtp import is_mtp, read_mtp
from .speculators import is_speculators, read_speculators

T = TypeVar("T")


class HeadFormat(NamedTuple):
    """A format.

    Attributes:
        name: for messages.
        methods: those that draft with its heads.
        tells: whether a folder is of it.
        read: the head of such a folder.
    """

    name: str
    methods: tuple[str, ...]
    tells: Callable[[HeadFiles], bool]
    read: Callable[[HeadFiles], PublishedHead]


# in order: the first that tells reads
FORMATS = (
    HeadFormat(
        "speculators",
        ("eagle3", "peagle", "dflash", "dspark", "mtp"),
        is_speculators,
        read_speculators,
    ),
    HeadFormat("MTP", ("mtp",), is_mtp, read_mtp),
    HeadFormat("DFlash", ("dflash", "domino", "dspark"), is_dflash, read_dflash),
    HeadFormat("DSpark", ("dspark",), is_deepspec, read_dflash),
    HeadFormat("ViSpec", ("vispec",), is_vispec, read_vispec),
    HeadFormat("EAGLE-3", ("eagle3", "peagle"), is_eagle3, read_eagle3),
    HeadFormat("Falcon", ("falcon",), is_falcon, read_falcon),
    HeadFormat("LongSpec", ("longspec",), is_longspec, read_longspec),
    HeadFormat("Medusa", ("medusa",), is_medusa, read_medusa),
    HeadFormat("Hydra", ("hydra",), is_hydra, read_hydra),
    HeadFormat("SpecVLM", ("specvlm",), is_specvlm, read_specvlm),
    HeadFormat("FLASH", ("flash",), is_flash, read_flash),
    HeadFormat("MSD", ("msd",), is_msd, read_msd),
    HeadFormat("EAGLE", ("eagle",), is_eagle, read_eagle),
)


def read_head(files: HeadFiles, kind: str | None = None) -> PublishedHead:
    """The head of a folder, whatever its format.

    Args:
        kind: "msd" for MSD's, whose files look like EAGLE-1's.

    Raises:
        InputError: no format is recognized, or the tensors do not fit the one that is.
    """
    if kind not in (None, "msd"):
        raise InputError(f"kind is 'msd' or nothing, not {kind!r}: other files tell their kind")
    check_layers(dict(files.config), files.tensors, files.folder)
    if kind is not None and not is_eagle(files):
        raise InputError(f"{files.folder} is no head of MSD: its files are not EAGLE-1's")
    if kind is not None:
        return _guarded(next(form for form in FORMATS if form.read is read_msd), files, read_msd)
    if files.config.get("model_arch") == "dfly":
        raise InputError(
            f"{files.folder}: DFly's tensors are not published with their meaning; no head of this "
            "kind can be loaded"
        )
    for form in FORMATS:
        if _guarded(form, files, form.tells):
            return _guarded(form, files, form.read)
    known = ", ".join(form.name for form in FORMATS)
    first = ", ".join(sorted(files.tensors)[:3])
    raise InputError(f"{files.folder} is no draft head that is known ({known}); it holds {first}")


def _guarded(form: HeadFormat, files: HeadFiles, do: Callable[[HeadFiles], T]) -> T:
    """Read something of the files by a format, no larger than the tensors.

    Raises:
        InputError: whatever went wrong, in one line that names the folder.
    """
    try:
        with bounded_init(files.tensors, files.folder):
            return do(files)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
        said = f"{type(error).__name__}: {reason(error)}"
    except ValueError as error:  # an InputError is one, and says all
        if isinstance(error, InputError) and str(files.folder) in str(error):
            raise
        if isinstance(error, InputError):
            raise InputError(f"{files.folder}: {error}") from error
        said = reason(error)
    raise InputError(
        f"{files.folder}: config.json and the tensors do not go together as a head of {form.name} "
        f"({said}); correct the config, or take the one that was saved with the tensors"
    )
