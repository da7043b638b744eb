"""Text to image with the models that transformers has: any family that `FAMILIES` knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from ...errors import InputError
from ...files import atomic_folder, read_object
from ...models.image_model import FAMILIES, TransformersImageModel
from ...models.loading import load_component
from ...models.token_grid import TokenGrid
from ...registry import resolve
from ..arguments import checked
from ..base import locate
from ..loading import DeviceMap, Loading
from .token_pipeline import TokenImagePipeline


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
    component_names: ClassVar = ("model", "processor", "drafter")

    def __init__(self, model: Any, processor: Any, drafter: Any = None) -> None:
        super().__init__()
        self.register_modules(model=model, processor=processor, drafter=drafter)
        target = self.image_model(model)
        if drafter is not None and self.image_model(drafter).vocab_size != target.vocab_size:
            raise InputError("the drafter has not the target's codes; use a model of its family")

    @classmethod
    @checked
    def from_pretrained(
        cls,
        path: str | Path | None = None,
        dtype: torch.dtype | str | None = None,
        device_map: DeviceMap = None,
        **options: Any,
    ) -> TransformersImagePipeline:
        """Load a folder in transformers' layout, or a hub repository.

        Args:
            path: the folder or the repository's id.
            dtype: of the weights, such as `torch.bfloat16` or "bfloat16"; None: float32.
            device_map: a device for everything; None: the CPU.
            options: see `SpeculativePipeline.from_pretrained`.

        Raises:
            InputError: the folder or a file is missing or unreadable, a tensor does not fit, the
                family is unknown, an option is wrong, or a device map names several devices.
        """
        if path is None:
            raise InputError("no model of transformers is embedded here; name a folder")
        loading = Loading.of(dtype, device_map, options, cls.component_names, ["drafter"])
        folder = locate(path, "", loading)
        family = _family(read_object(folder / "config.json").get("model_type"))
        classes = {name: resolve(kind) for name, kind in family.component_classes.items()}
        if (folder / "drafter").is_dir():
            classes["drafter"] = classes["model"]
        parts = {
            name: load_component(kind, _home(folder, name), loading.dtype, loading.variant)
            for name, kind in classes.items()
            if name not in loading.parts
        }
        pipe = cls(**parts, **loading.parts)
        return pipe if loading.device is None else pipe.to(loading.device)

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
