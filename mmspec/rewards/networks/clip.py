"""CLIP through open_clip: pictures and prompts as vectors of one space.

Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision". Models
come from a folder in open_clip's own format or from a bare checkpoint with the name of its
architecture; either way every tensor must fit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import open_clip
import torch
import torch.nn.functional as F
from open_clip.tokenizer import HFTokenizer
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from torch import Tensor, nn

from ...errors import InputError, reason
from ...files import read_object
from ...models.bounded_init import bounded_init
from ...models.distinct import distinct
from ...models.embedded import embedded_folder
from ...models.loading import cast, load_strict
from ...models.truncation import lost_words, tell_lost
from ...models.weights import WRAPPED, read_tensors
from ...registry import check_name
from ..base import Images, batches, check_pairs, to_pil

C = TypeVar("C", bound="OpenCLIP")
CONFIG = "open_clip_config.json"
# in open_clip's order of preference
WEIGHTS = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
)


class OpenCLIP:
    """A CLIP of open_clip, its tokenizer and its preprocessing.

    Args:
        model: one of open_clip's models.
        preprocess: a picture to pixels `[3, S, S]`.
        tokenizer: captions to ids `[N, T]`.
        name: as reports spell it.
        batch_size: most pictures, or prompts, in one forward.
    """

    def __init__(
        self,
        model: nn.Module,
        preprocess: Callable[[Image.Image], Tensor],
        tokenizer: Callable[[list[str]], Tensor],
        name: str = "clip",
        batch_size: int = 32,
    ) -> None:
        self.model: Any = model
        self.preprocess, self.tokenizer = preprocess, tokenizer
        self.name, self.batch_size = name, batch_size

    @classmethod
    def from_pretrained(
        cls: type[C], path: str | Path, *, device: str | torch.device = "cpu", batch_size: int = 32
    ) -> C:
        """A model from a folder in open_clip's format, as its models are published on the Hub.

        Args:
            path: a folder with `open_clip_config.json`, the weights and the tokenizer's files.

        Raises:
            InputError: a file is missing or unreadable, or a tensor is missing, unexpected or of
                another shape.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise InputError(f"no folder {folder} with {CONFIG}")
        read_object(folder / CONFIG)
        weights = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
        if weights is None:
            raise InputError(f"no {WEIGHTS[0]} or {WEIGHTS[-1]} in {folder}")
        parts = _load(f"local-dir:{folder}", weights, {})
        return cls(*parts, name=f"clip-{folder.resolve().name}", batch_size=batch_size).to(device)

    @classmethod
    def from_checkpoint(
        cls: type[C],
        path: str | Path,
        architecture: str,
        *,
        preprocess: Mapping[str, Any] | None = None,
        device: str | torch.device = "cpu",
        batch_size: int = 32,
    ) -> C:
        """A model from a bare state dict, `.safetensors` or what `torch.save` wrote.

        Args:
            architecture: open_clip's name of it, such as `ViT-H-14`. OpenAI's own weights want
                those that end in `-quickgelu`: nothing in a checkpoint tells them apart.
            preprocess: changes to open_clip's `PreprocessCfg`, such as a `resize_mode`.

        Raises:
            InputError: no such architecture, an unreadable file, or a tensor is missing, unexpected
                or of another shape.
        """
        check_name("architecture", architecture, open_clip.list_models())
        parts = _load(architecture, Path(path), preprocess or {})
        return cls(*parts, name=f"clip-{architecture}", batch_size=batch_size).to(device)

    def to(self: C, device: str | torch.device) -> C:
        """Move the model, in place."""
        self.model.to(device)
        return self

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    def image_features(self, images: Images) -> Tensor:
        """Unit vectors of pictures, float32 `[N, D]` on the CPU."""
        return F.normalize(self.features(images), dim=-1)

    def text_features(self, prompts: Sequence[str]) -> Tensor:
        """Unit vectors of prompts, float32 `[N, D]` on the CPU.

        The tokenizer cuts long ones, and a warning names what is lost.

        Raises:
            ValueError: no prompts.
        """

        def embed(part: slice) -> Tensor:
            words = list(prompts[part])
            if length := getattr(self.tokenizer, "context_length", None):
                tell_lost(_lost(self.tokenizer, words, length), length, self.name)
            ids = self.tokenizer(words).to(self.device)
            return self.model.encode_text(ids, normalize=True)

        return self._in_batches(len(prompts), embed)

    def features(self, images: Images) -> Tensor:
        """Embeddings of pictures before they are brought to unit length, float32 `[N, D]`.

        Distances between sets are taken there (Kynkäänniemi et al. 2023, FID over CLIP features).

        Raises:
            ValueError: no pictures, or a tensor that is not uint8 `[N, 3, H, W]`.
        """

        def embed(part: slice) -> Tensor:
            pixels = torch.stack([self.preprocess(image) for image in to_pil(images[part])])
            return self.model.encode_image(pixels.to(self.device), normalize=False)

        return self._in_batches(len(images), embed)

    def similarity(self, prompts: Sequence[str], images: Images) -> Tensor:
        """Cosine of each prompt with its picture, float32 `[N]` on the CPU.

        Raises:
            ValueError: not one prompt per picture.
        """
        check_pairs(prompts, images)
        cosines = torch.empty(len(prompts))
        for part in batches(len(prompts), self.batch_size):
            words, places = distinct(prompts[part])
            told, seen = self.text_features(words)[places], self.image_features(images[part])
            cosines[part] = (told * seen).sum(-1)
        return cosines

    def _in_batches(self, count: int, embed: Callable[[slice], Tensor]) -> Tensor:
        if count == 0:
            raise ValueError("there is nothing to embed")
        with torch.inference_mode():
            parts = [embed(part).float().cpu() for part in batches(count, self.batch_size)]
        return torch.cat(parts)  # an ordinary tensor: not in inference mode


class ShapesCLIP(OpenCLIP):
    """The embedded CLIP: trained on the shapes world, and of use only there."""

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path | None = None,
        *,
        device: str | torch.device = "cpu",
        batch_size: int = 64,
    ) -> ShapesCLIP:
        """The embedded model, or one that `mmspec train` has written to `path`.

        Raises:
            InputError: as `OpenCLIP.from_pretrained`.
        """
        clip = super().from_pretrained(
            path or embedded_folder("clip"), device=device, batch_size=batch_size
        )
        clip.name = "shapes_clip"
        return clip

    def features(self, images: Images) -> Tensor:
        """Embeddings of pictures, unit vectors `[N, D]`: their lengths say little in this model."""
        return F.normalize(super().features(images), dim=-1)


def _load(
    name: str, weights: Path, preprocess: Mapping[str, Any]
) -> tuple[nn.Module, Callable[[Image.Image], Tensor], Callable[[list[str]], Tensor]]:
    """Model, preprocessing and tokenizer of open_clip's `name`, with weights from a file."""
    tensors = read_tensors(weights, WRAPPED)
    try:
        # the weights that the library draws are replaced: nobody's random numbers are used up
        given = dict(load_weights=False, pretrained_text=False)
        with _quiet(), torch.random.fork_rng(devices=[]), bounded_init(tensors, name):
            model = open_clip.create_model(name, force_preprocess_cfg=dict(preprocess), **given)
            tokenizer = _load_tokenizer(name)
        transform = image_transform_v2(PreprocessCfg(**model.visual.preprocess_cfg), is_train=False)
    except InputError:
        raise
    except Exception as error:  # the library raises what its parsers raise
        raise InputError(f"open_clip can't make {name}: {reason(error)}") from error
    return cast(load_strict(model, tensors, weights), torch.float32), transform, tokenizer


def _lost(tokenizer: Any, prompts: list[str], length: int) -> dict[str, str]:
    if isinstance(tokenizer, HFTokenizer):
        return lost_words(tokenizer.tokenizer, [tokenizer.clean_fn(p) for p in prompts], length)
    room = length - 2  # between the marks of beginning and end
    found = {prompt: tokenizer.encode(prompt)[room:] for prompt in prompts}
    return {prompt: tokenizer.decode(ids).strip() for prompt, ids in found.items() if ids}


def _load_tokenizer(name: str) -> Any:
    """The tokenizer of a model, from local files and without code of theirs."""
    settings = open_clip.get_model_config(name)["text_cfg"]
    local = {"local_files_only": True, "trust_remote_code": False}
    tokenizer = open_clip.get_tokenizer(name, **(local if "hf_tokenizer_name" in settings else {}))
    if isinstance(tokenizer, HFTokenizer):
        words, most = tokenizer.tokenizer, settings.get("vocab_size")
        if len(words) <= len(words.all_special_tokens):  # what the library makes of missing files
            raise ValueError("its tokenizer has no vocabulary")
        if most is not None and len(words) > most:
            raise ValueError(f"its tokenizer has {len(words)} words, the model {most}")
    return tokenizer


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's warnings that a model made without weights has none."""

    def grave(record: logging.LogRecord) -> bool:
        return record.levelno > logging.WARNING

    # it warns by the root logger itself; those of others, in other threads too, are left alone
    logging.root.addFilter(grave)
    try:
        yield
    finally:
        logging.root.removeFilter(grave)
