"""What a reward and a feature extractor are, and the pictures that they take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import numpy as np
from PIL import Image

from ..picture import open_picture

if TYPE_CHECKING:
    from torch import Tensor

Images: TypeAlias = "Tensor | Sequence[Image.Image]"
"""Pictures: uint8 `[N, 3, H, W]`, or PIL images that may differ in size."""


class Reward(Protocol):
    """How well pictures fit their prompts; larger is better.

    Attributes:
        name: the metric's standard name, as reports spell it, such as `image_reward`.
    """

    name: str

    def score(self, prompts: Sequence[str], images: Images) -> Tensor:
        """Float32 scores `[N]` on the CPU; `prompts[i]` belongs to `images[i]`."""


@runtime_checkable
class BlockReward(Protocol):
    """How well a block of a clip's frames goes on with it; larger is better.

    Attributes:
        name: the metric's standard name.
    """

    name: str

    def score_block(
        self, prompt: str, frames: Tensor, before: Tensor | None, number: int
    ) -> Tensor:
        """Float32 scores `[T]` on the CPU of a block's frames, uint8 `[T, 3, H, W]`.

        Args:
            before: the last frame before the block, uint8 `[3, H, W]`; None: the clip begins.
            number: of the block in its clip, from 0.
        """


class FeatureExtractor(Protocol):
    """Features of pictures, for distances between sets.

    Attributes:
        name: the network and, where it matters, the resize, as reports spell it.
    """

    name: str

    def features(self, images: Images) -> Tensor:
        """Float32 features `[N, D]` on the CPU."""


def to_pil(images: Images) -> list[Image.Image]:
    """The pictures as RGB images.

    Raises:
        ValueError: a tensor that is not uint8 `[N, 3, H, W]`.
    """
    if isinstance(images, Sequence):
        return [open_picture(image) for image in images]
    _check(images)
    return [Image.fromarray(array) for array in images.movedim(1, -1).cpu().numpy()]


def to_uint8(images: Images) -> Tensor:
    """The pictures as uint8 `[N, 3, H, W]`.

    Raises:
        ValueError: pictures of different sizes, or a tensor of another kind.
    """
    import torch

    if isinstance(images, torch.Tensor):
        _check(images)
        return images
    pictures = to_pil(images)
    sizes = {picture.size for picture in pictures}
    if len(sizes) != 1:
        raise ValueError(f"pictures of {len(sizes)} sizes can't be one batch")
    arrays = np.stack([np.asarray(picture) for picture in pictures])
    return torch.from_numpy(arrays).movedim(-1, 1)


def check_pairs(prompts: Sequence[str], images: Images) -> None:
    """Raise a `ValueError` unless there is one prompt per picture."""
    if isinstance(prompts, str):
        raise ValueError("prompts must be a list, one for each picture, not one string")
    if len(prompts) != len(images):
        raise ValueError(f"{len(prompts)} prompts can't be paired with {len(images)} pictures")


def distinct(prompts: Sequence[str]) -> tuple[list[str], list[int]]:
    """Each prompt once, and where each of those given is among them: a clip's frames share one."""
    words = list(dict.fromkeys(prompts))
    return words, [words.index(prompt) for prompt in prompts]


def batches(count: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that together cover `count` things."""
    return (slice(start, start + size) for start in range(0, count, size))


def _check(images: Tensor) -> None:
    import torch

    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3:
        raise ValueError(f"expected uint8 [N, 3, H, W], got {images.dtype} {list(images.shape)}")
