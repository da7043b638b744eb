"""The models of the demo: each is loaded when it is first asked for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..methods import PIPELINES, Modality, serving
from ..pipelines.model_folders import embedded_name, locate, runnable_in, shipped
from ..progress import hide_library_bars
from ..registry import resolve
from . import markup

FIRST_RATE = 50e6  # bytes a second, before a model was loaded: a guess for a plain disk


@dataclass
class Model:
    """A pipeline, and which ways of running it have been run: the first time is a slow one.

    Attributes:
        first_round: seconds of a round that was the first of its kind; None: there was none yet.
    """

    pipe: Any
    warm: set[Any] = field(default_factory=set)
    first_round: float | None = None


class ModelCache:
    """Pipelines by modality and name: those of `folders`, and the embedded model."""

    def __init__(self, folders: Mapping[Modality, Sequence[Path]], device: str = "cpu") -> None:
        self.device = device
        self._folders: dict[Modality, dict[str, Path | None]] = {}
        for modality in PIPELINES:
            own, given = f"embedded-{embedded_name(modality)}", list(folders.get(modality, ()))
            self._folders[modality] = {**_named(given, own), own: None}
        self._kept: dict[tuple[Modality, Path | None], Model] = {}
        self._rate = FIRST_RATE  # bytes a second of the last one that was loaded
        self._typed: dict[Modality, Path] = {}

    def names(self, modality: Modality) -> list[str]:
        """Names of the models to choose from, the default first."""
        return list(self._folders[modality])

    def folder(self, modality: Modality, name: str) -> Path | None:
        """The folder of a name; None: the embedded model."""
        if name not in self._folders[modality]:
            raise InputError(f"there is no model {name!r} here; choose one of the list")
        return self._folders[modality][name]

    def embedded(self, modality: Modality, name: str) -> bool:
        """True if a name is that of a model that ships."""
        return self._folders[modality].get(name, Path()) is None and name in shipped()

    def methods(self, modality: Modality, name: str) -> list[str]:
        """The methods that a model of the list has the parts for; of one that is missing all."""
        folder = self.folder(modality, name) or shipped().get(name)
        return list(serving(modality)) if folder is None else runnable_in(folder, modality)

    def load(self, modality: Modality, folder: Path | None) -> Model:
        """The pipeline of a folder; None: the embedded one.

        Of the folders that visitors typed, a modality's latest is kept.
        """
        found = self._kept.get((modality, folder))
        if found is None:
            if folder is not None and folder not in self._folders[modality].values():
                self._kept.pop((modality, self._typed.get(modality, Path())), None)
                self._typed[modality] = folder
            begun = time.monotonic()
            hide_library_bars()
            pipe = resolve(PIPELINES[modality].reference).from_pretrained(folder).to(self.device)
            pipe.set_progress_bar_config(disable=True)
            found = self._kept[modality, folder] = Model(pipe)
            self._rate = self._bytes(modality, folder) / (time.monotonic() - begun)
        return found

    def wait(self, modality: Modality, folder: Path | None) -> str:
        """Say what a visitor waits for before a run by this model, and how long; "": nothing."""
        if (modality, folder) in self._kept:
            return ""
        size = self._bytes(modality, folder)
        many = f", {size / 1e6:.3g} MB" if size else ""
        long = f", about {markup.seconds(size / self._rate)}" if size else ""
        return f"Loading the model{many}{long} …"

    def _bytes(self, modality: Modality, folder: Path | None) -> int:
        """Size of a model's files; 0: unknown."""
        home = folder or shipped().get(f"embedded-{embedded_name(modality)}", Path())
        return sum(p.stat().st_size for p in home.rglob("*") if p.is_file()) if home.name else 0

    def missing(self, modality: Modality) -> str | None:
        """Reason why the default model can't be loaded; None: none is known without loading it."""
        name = self.names(modality)[0]
        if self.folder(modality, name) is not None or name in shipped():
            return None
        try:
            locate(name, embedded_name(modality))
        except InputError as error:
            return str(error)
        return None


def _named(folders: Sequence[Path], taken: str) -> dict[str, Path]:
    """Folders by the shortest ends of their paths that tell them apart, and from a name that is
    taken: where a server has its models is nobody's business."""
    paths, named = [folder.absolute() for folder in folders], {}
    for path in paths:
        others = [other.parts for other in (*paths, Path(taken)) if other != path]
        count = 1
        while any(other[-count:] == path.parts[-count:] for other in others):
            count += 1
        named[str(Path(*path.parts[-count:]))] = path.resolve()
    return named
