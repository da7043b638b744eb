"""Text to image with the models that transformers has: any family that `FAMILIES` knows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from ..errors import InputError
from ..files import atomic_folder
from ..models.image_model import FAMILIES, TransformersImageModel
from ..models.loading import load_component, read_json
from ..models.placement import Device
from ..models.token_grid import TokenGrid
from ..registry import resolve
from .base import locate
from .token_image import TokenImagePipeline


class TransformersImagePipeline(TokenImagePipeline):
    """A model of transformers that draws: what is its family's own is in its `ImageModel`.

    Folders are in transformers' own layout: the model and its processor as `save_pretrained` writes
    them, a drafter in a folder of that name inside.

    Args:
        model: the target, such as `JanusForConditionalGeneration`.
        processor: its processor.
        drafter: smaller model of the same family and the same codes.

    Raises:
        InputError: no known family, or the drafter does not fit.
    """

    _optional_components: ClassVar = ["drafter"]

    def __init__(self, model: Any, processor: Any, drafter: Any = None) -> None:
        super().__init__()
        self.register_modules(model=model, processor=processor, drafter=drafter)
        target = self.image_model(model)
        if drafter is not None and self.image_model(drafter).vocab_size != target.vocab_size:
            raise InputError("the drafter has not the target's codes; use a model of its family")

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path | None = None,
        dtype: torch.dtype = torch.float32,
        device_map: str | Mapping[str, Device] | None = None,
    ) -> TransformersImagePipeline:
        """Load a folder in transformers' layout, or a hub repository.

        Args:
            path: the folder or the repository's id.
            dtype: of the weights.
            device_map: must be None: the whole model is on one device.

        Raises:
            InputError: the folder or a file is missing or unreadable, a tensor does not fit, the
                family is unknown, or a device map is given.
        """
        if path is None:
            raise InputError("no model of transformers is embedded here; name a folder")
        folder = locate(path, "")
        if device_map is not None:
            raise InputError("device_map spreads LlamaGen alone; use .to() for this model")
        family = _family(read_json(folder / "config.json").get("model_type"))
        classes = {name: resolve(kind) for name, kind in family.component_classes.items()}
        parts = {
            name: load_component(kind, _home(folder, name), dtype) for name, kind in classes.items()
        }
        if (folder / "drafter").is_dir():
            parts["drafter"] = load_component(classes["model"], folder / "drafter", dtype)
        return cls(**parts)

    def save_pretrained(self, save_directory: str | Path, max_shard_size: str = "10GB") -> None:
        """Write every component as `from_pretrained` reads it.

        Args:
            save_directory: folder, made if it does not exist.
            max_shard_size: largest weights file ("5GB").

        Raises:
            InputError: it can't be written: the disk is full, say. The folder is as it was.
        """
        with atomic_folder(Path(save_directory)) as folder:
            for name, component in self.components.items():
                if component is not None:
                    sharded = {} if name == "processor" else {"max_shard_size": max_shard_size}
                    component.save_pretrained(_home(folder, name), **sharded)

    def network(self, height: int | None, width: int | None) -> tuple[nn.Module, TokenGrid]:
        family = self.image_model(self.model)
        sides = [side for side in (height, width) if side is not None] or family.default_size
        return self.model, family.grid(sides[0], sides[-1])

    def image_model(self, network: Any) -> TransformersImageModel:
        return _family(network.config.model_type)(network, self.processor)


def is_transformers_folder(folder: Path) -> bool:
    """Whether a folder holds one model of transformers, and not a pipeline."""
    return (folder / "config.json").exists() and not (folder / "model_index.json").exists()


def _home(folder: Path, name: str) -> Path:
    """Where a component lies in a pipeline's folder."""
    return folder if name in ("model", "processor") else folder / name


def _family(model_type: str | None) -> type[TransformersImageModel]:
    if model_type not in FAMILIES.names():
        known = ", ".join(FAMILIES.names())
        raise InputError(f"{model_type!r} is no model that draws here (known: {known})")
    family: type[TransformersImageModel] = FAMILIES.get(model_type)
    return family
