"""Find the folders of models and the methods that they can run; nothing is loaded.

A pipeline that is loaded knows better (`check_speculation`); this is for lists and defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_object
from ..methods import PIPELINES, Modality, SpecConfig, serving
from ..methods.parts.routing import ROUTERS
from ..models.embedded import MODELS, readable
from ..models.masked_folders import is_masked
from ..models.packaged import PACKAGED, packaged_folder
from ..registry import resolve
from .loading import Loading

_BESIDE = ("drafter", "experts", "judge", *ROUTERS)  # folders of a text model's
_EMBEDDED = "embedded-"  # begins the names of models that ship


def components_in(folder: Path, modality: Modality) -> set[str]:
    """Names of a folder's components, as in `ResolvedConfig.needs`."""
    if modality == "vlm":
        heads = {f"heads/{home.parent.name}" for home in folder.glob("heads/*/config.json")}
        parts = {name for name in _BESIDE if (folder / name).is_dir()}
        masked = {"masked": folder / "drafter", "masked-target": folder}
        return heads | parts | {name for name, home in masked.items() if is_masked(home)}
    index = folder / "model_index.json"
    listed = read_object(index) if index.exists() else {}
    found = {name: kind for name, kind in listed.items() if isinstance(kind, list) and kind}
    return {name for name, kind in found.items() if kind[0] is not None}


def runnable_in(folder: Path, modality: Modality) -> list[str]:
    """The methods of a modality whose components a folder holds."""
    there = components_in(folder, modality)
    resolved = {name: SpecConfig(name).resolve(modality) for name in serving(modality)}
    return [name for name, config in resolved.items() if there.issuperset(config.needs)]


def first_method(folder: Path, modality: Modality) -> str:
    """The default method: of those that are meant to be, the first that a folder can run."""
    return first_of(modality, runnable_in(folder, modality).__contains__)


def first_of(modality: Modality, able: Callable[[str], bool]) -> str:
    """First of a modality's default methods that is `able` to run.

    If none is, the first of all: whoever runs it is told what it lacks.
    """
    return next(filter(able, PIPELINES[modality].first), PIPELINES[modality].first[0])


def first_able(pipe: Any, modality: Modality) -> str:
    """The first of a modality's default methods that a loaded pipeline has the parts for."""

    def able(name: str) -> bool:
        try:
            pipe.check_speculation(SpecConfig(name))
        except InputError:
            return False
        return True

    return first_of(modality, able)


def embedded_name(modality: Modality) -> str:
    """The name of a modality's embedded model among those that ship."""
    return resolve(PIPELINES[modality].reference).embedded


def shipped() -> dict[str, Path]:
    """The folders of the pipelines that ship with the package, by the name that `locate` takes."""
    index = ("model_index.json", "config.json")
    folders = sorted(path for path in MODELS.iterdir() if any((path / n).exists() for n in index))
    return {_EMBEDDED + folder.name: folder for folder in folders}


def locate(path: str | Path | None, embedded: str, loading: Loading | None = None) -> Path:
    """The folder of an embedded model ("embedded-image"), a local one, or a downloaded repository.

    A packaged model ("smollm2") too. None stands for the model `embedded`; `loading` names a
    subfolder, and how to download. A `Path` is never a name.
    """
    loading = loading or Loading()
    if path is None and not embedded:
        raise InputError("no model of this pipeline is embedded; name a folder")
    name = _EMBEDDED + embedded if path is None else path if isinstance(path, str) else ""
    there = shipped() if name.startswith(_EMBEDDED) else {}
    if name in there:
        folder = readable(there[name])
    elif name in PACKAGED:
        folder = packaged_folder(name)
    elif path is None or (name.startswith(_EMBEDDED) and not Path(name).exists()):
        known = ", ".join(there) or "none"
        raise InputError(
            f"no model {name} ships with this version (there are {known}); name a folder"
        )
    elif (folder := Path(path)).exists():
        if "revision" in loading.hub:
            raise InputError(f"{folder} is a folder, which has no revisions; leave revision out")
        folder = readable(folder)
    elif "/" in str(path) and not str(path).startswith((".", "/", "~")):
        folder = loading.download(str(path))
    else:
        names = ", ".join([*shipped(), *PACKAGED])
        raise InputError(f"no model folder at {path}; models by name are {names}")
    if loading.subfolder is None:
        return folder
    if not (folder / loading.subfolder).is_dir():
        raise InputError(f"{folder} has no subfolder {loading.subfolder!r}")
    return folder / loading.subfolder
