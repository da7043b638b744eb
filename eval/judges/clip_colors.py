"""The colour of an object by CLIP, zero-shot, as the official GenEval asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ...errors import InputError
from ...picture import open_picture
from ...worlds.shapes.scoring import Box
from ...worlds.shapes.vocabulary import COLORS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

NAMES = tuple(COLORS)  # GenEval's ten colours, in its order
TEMPLATES = (
    "a photo of a {color} {label}",
    "a photo of a {color}-colored {label}",
    "a photo of a {color} object",
)
_GREY = (0x99, 0x99, 0x99)  # behind the object


class ClipColors:
    """Names the colour of masked objects with an open_clip model.

    Args:
        weights: the checkpoint's file, safetensors or loadable with `weights_only=True`.
        model: open_clip's name of the architecture. GenEval used OpenAI's ViT-L-14, whose
            activations are QuickGELU: the plain name would load the same tensors and be wrong.
        device: where the network runs.
    """

    def __init__(
        self,
        weights: str | Path,
        *,
        model: str = "ViT-L-14-quickgelu",
        device: str | torch.device = "cpu",
    ) -> None:
        import open_clip
        import torch

        if not Path(weights).is_file():
            raise InputError(f"no file {weights}: the weights of open_clip's {model} belong there")
        try:
            network, _, transform = open_clip.create_model_and_transforms(
                model, pretrained=str(weights), device=device, weights_only=True
            )
        except Exception as error:  # the library raises what its parsers raise
            first = (str(error) or type(error).__name__).splitlines()[0]
            raise InputError(f"can't load {weights} as open_clip's {model}: {first}") from error
        self.name = model
        self.device = torch.device(device)
        self._model: Any = network.eval()
        self._transform: Any = transform
        self._tokenize: Any = open_clip.get_tokenizer(model)
        self._classifiers: dict[str, Tensor] = {}

    def classify(self, crops: Sequence[Image.Image], label: str) -> list[str]:
        """The colour of each cropped object of class `label`."""
        import torch

        with torch.inference_mode():
            pixels = torch.stack([self._transform(crop) for crop in crops]).to(self.device)
            features = self._model.encode_image(pixels, normalize=True)  # [N, D]
            best = (features @ self._classifier(label).T).argmax(-1)
        return [NAMES[index] for index in best.tolist()]

    def _classifier(self, label: str) -> Tensor:
        """Unit vectors `[10, D]`: per colour, the mean over the templates' unit vectors."""
        if label not in self._classifiers:
            texts = [t.format(color=color, label=label) for color in NAMES for t in TEMPLATES]
            tokens = self._tokenize(texts).to(self.device)
            features = self._model.encode_text(tokens, normalize=True)
            mean = features.unflatten(0, (len(NAMES), len(TEMPLATES))).mean(1)
            self._classifiers[label] = mean / mean.norm(dim=-1, keepdim=True)
        return self._classifiers[label]


def masked_crop(image: Image.Image, mask: npt.NDArray[np.bool_], box: Box) -> Image.Image:
    """The part of a picture in `box`, grey (#999) where `mask` `[H, W]` is false."""
    picture = open_picture(image)
    grey = Image.new("RGB", picture.size, _GREY)
    left, top, right, bottom = (round(edge) for edge in box)
    return Image.composite(picture, grey, Image.fromarray(mask)).crop((left, top, right, bottom))
