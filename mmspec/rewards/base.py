"""Interfaces of rewards and feature extractors, and the pictures that they take, in batches."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from PIL import ExifTags, Image

from ..models.distinct import distinct
from ..picture import open_picture

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Images: TypeAlias = "Tensor | Sequence[Image.Image]"
"""Pictures: uint8 `[N, 3, H, W]`, or PIL images that may differ in size."""


class Reward(Protocol):
    """Score of pictures for their prompts; larger is better.

    Attributes:
        name: the metric's standard name, as reports spell it, such as `image_reward`.
    """

    name: str

    def score(self, prompts: Sequence[str], images: Images) -> Tensor:
        """Float32 scores `[N]` on the CPU; `prompts[i]` belongs to `images[i]`."""


@runtime_checkable
class BlockReward(Protocol):
    """Score of a block of frames as the next one of its clip; larger is better.

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


class NetworkReward:
    """Base of a `Reward` of one network, batch by batch.

    Args:
        network: a torch module.
        preprocess: of its pictures.
        tokenizer: of its prompts, one of transformers'.
        batch_size: most pictures in one forward.
    """

    name: str

    def __init__(self, network: Any, preprocess: Any, tokenizer: Any, batch_size: int = 32) -> None:
        self.network, self.preprocess, self.tokenizer = network, preprocess, tokenizer
        self.batch_size = batch_size

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return next(self.network.parameters()).device

    def score(self, prompts: Sequence[str], images: Images) -> Tensor:
        """Float32 scores `[N]` on the CPU; `prompts[i]` belongs to `images[i]`.

        Raises:
            ValueError: not one prompt per picture.
        """
        import torch

        check_pairs(prompts, images)
        scores = torch.empty(len(prompts))
        with torch.inference_mode():
            for part in batches(len(prompts), self.batch_size):
                words, places = distinct(prompts[part])
                scores[part] = self._score(words, places, to_pil(images[part]))
        return scores

    def _score(self, words: list[str], places: list[int], pictures: list[Image.Image]) -> Tensor:
        """Scores of pictures, the n-th beside `words[places[n]]`."""
        raise NotImplementedError

    def _tokens(self, words: list[str], length: int, padding: bool | str = True) -> Any:
        """Prompts as the network reads them; a warning names what is cut off."""
        from ..models.truncation import lost_words, tell_lost

        tell_lost(lost_words(self.tokenizer, words, length), length, self.name)
        return self.tokenizer(
            words, padding=padding, truncation=True, max_length=length, return_tensors="pt"
        ).to(self.device)


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


def batches(count: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that together cover `count` things."""
    return (slice(start, start + size) for start in range(0, count, size))


def sizes(images: Images) -> list[tuple[int, int]]:
    """`(width, height)` of each picture, as it is seen: turned, where its EXIF says so."""
    if isinstance(images, Sequence):
        turned = [image.getexif().get(ExifTags.Base.Orientation, 1) >= 5 for image in images]
        pairs = zip(images, turned, strict=True)
        return [one.size[::-1] if on_side else one.size for one, on_side in pairs]
    return [(images.shape[-1], images.shape[-2])] * len(images)


def rows_alike(kinds: Iterable[Hashable], most: int) -> Iterator[list[int]]:
    """Indices of at most `most` things of one kind, such as size; each thing comes once."""
    by_kind: dict[Hashable, list[int]] = {}
    for row, kind in enumerate(kinds):
        by_kind.setdefault(kind, []).append(row)
    return (rows[part] for rows in by_kind.values() for part in batches(len(rows), most))


def select(images: Images, rows: Sequence[int]) -> Tensor:
    """Select pictures of equal size, as uint8 `[len(rows), 3, H, W]`."""
    if isinstance(images, Sequence):
        return to_uint8([images[row] for row in rows])
    return to_uint8(images)[list(rows)]


def _check(images: Tensor) -> None:
    import torch

    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3:
        raise ValueError(f"expected uint8 [N, 3, H, W], got {images.dtype} {list(images.shape)}")
