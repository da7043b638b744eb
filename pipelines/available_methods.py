"""Which methods a model's folder can run, by what it holds beside the target; nothing is loaded.

A pipeline that is loaded knows better (`check_speculation`); this is for lists and defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..files import read_object
from ..methods import PIPELINES, Modality, SpecConfig, serving


def components_in(folder: Path, modality: Modality) -> set[str]:
    """Names of the components, as `ResolvedConfig.needs` has them.

    Raises:
        InputError: `model_index.json` can't be read.
    """
    if modality == "vlm":
        heads = {f"heads/{home.parent.name}" for home in folder.glob("heads/*/config.json")}
        parts = {name for name in ("drafter", "experts") if (folder / name).is_dir()}
        return heads | parts
    index = folder / "model_index.json"
    listed = read_object(index) if index.exists() else {}
    found = {name: kind for name, kind in listed.items() if isinstance(kind, list) and kind}
    return {name for name, kind in found.items() if kind[0] is not None}


def runnable_in(folder: Path, modality: Modality) -> list[str]:
    """The methods of a modality whose components a folder holds."""
    there = components_in(folder, modality)
    return [name for name in serving(modality) if _needs(name, modality) <= there]


def first_method(folder: Path, modality: Modality) -> str:
    """The default method: of those that are meant to be, the first that a folder can run."""
    return first_of(modality, runnable_in(folder, modality).__contains__)


def first_of(modality: Modality, able: Callable[[str], bool]) -> str:
    """Of the methods that are meant to be a modality's default, the first that is `able` to run.

    Of none the first of all: whoever runs it is told what it lacks.
    """
    return next(filter(able, PIPELINES[modality].first), PIPELINES[modality].first[0])


def _needs(method: str, modality: Modality) -> set[str]:
    return set(SpecConfig(method).resolve(modality).needs)
