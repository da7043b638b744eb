"""Text to image with the models that transformers has: any family that `FAMILIES` knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from ...errors import InputError
from ...files import read_object
from ...models.image_model import FAMILIES, TransformersImageModel
from ...models.loading import load_component
from ...models.token_grid import TokenGrid
from ...registry import resolve
from ..loading import Loading
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

    index: ClassVar[str] = "config.json"
    homes: ClassVar[dict[str, str]] = {"model": ".", "processor": "."}

    def __init__(self, model: Any, processor: Any, drafter: Any = None) -> None:
        super().__init__(locals())
        target = self.image_model(model)
        if drafter is not None and self.image_model(drafter).vocab_size != target.vocab_size:
            raise InputError("the drafter has not the target's codes; use a model of its family")

    @classmethod
    def load_parts(cls, folder: Path, loading: Loading) -> dict[str, Any]:
        family = _family(read_object(folder / cls.index).get("model_type"))
        classes = {name: resolve(kind) for name, kind in family.component_classes.items()}
        if (folder / "drafter").is_dir():
            classes["drafter"] = classes["model"]
        of = loading.dtype, loading.variant
        return {
            name: load_component(kind, folder / cls.homes.get(name, name), *of)
            for name, kind in classes.items()
            if name not in loading.parts
        }

    def network(
        self, height: int | None, width: int | None, alone: bool = False
    ) -> tuple[nn.Module, TokenGrid]:
        sides = [side for side in (height, width) if side is not None]
        sides = sides or [*self.image_model(self.model).default_size]
        network = self.drafter if alone else self.model
        return network, self.image_model(network).grid(sides[0], sides[-1])

    def image_model(self, network: Any) -> TransformersImageModel:
        return _family(network.config.model_type)(network, self.processor)


def _family(model_type: str | None) -> type[TransformersImageModel]:
    if model_type not in FAMILIES.names():
        known = ", ".join(FAMILIES.names())
        raise InputError(f"{model_type!r} is no model that draws here (known: {known})")
    return FAMILIES.get(model_type)
