"""Families of token models that draw pictures in the one pipeline.

A family's token ids are its own: codes 0 … V - 1, behind them the tokens that its layout forces
(see `TokenGrid`). Its decoder has embeddings for all of them and logits for the codes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from ..registry import Registry
from .llamagen.decoder import LlamaGenDecoder
from .placement import Placement
from .token_grid import TokenGrid
from .transformers.causal import CausalDecoder
from .transformers.prompt_inputs import one_start, spelled


class ImageModel(Protocol):
    """A network that draws pictures token by token, with what it needs before and after.

    Attributes:
        guidance_scale, top_k: that its authors draw with; top-k 0: all codes.
        vocab_size: token ids: codes, and forced tokens.
        default_size: height and width in pixels.
    """

    guidance_scale: float
    top_k: int
    vocab_size: int
    default_size: tuple[int, int]

    @property
    def network(self) -> nn.Module:
        """Holds the weights that run for every token."""

    def grid(self, height: int, width: int) -> TokenGrid:
        """The tokens of a picture of `height` by `width` pixels.

        Raises:
            InputError: the network does not draw that size.
        """

    def condition(
        self, prompts: list[str], negative: list[str] | None, guided: bool, grid: TokenGrid
    ) -> tuple[Tensor, Tensor]:
        """Condition of prompts for any network of the family, `[R, T, …]`, and its mask `[R, T]`.

        Left-padded; the last column is always real. R is one row a prompt; `guided`, the
        unconditional rows follow, told `negative` or, without it, nothing.
        """

    def uncaptioned(self, condition: Tensor) -> Tensor:
        """A guided condition of another network, with this one's learned "no caption" in it."""

    def embed(self, condition: Tensor) -> Tensor:
        """The prefix `[R, T, D]` of this network."""

    def decoder(
        self, placement: Placement | None = None, weights: str | None = None
    ) -> LlamaGenDecoder | CausalDecoder:
        """The network's inference form, over the family's token ids.

        Args:
            placement: on which devices, for families whose layers can be spread.
            weights: how those of linear layers are rounded, see `rounded.linear`.

        Raises:
            InputError: they can't be rounded.
        """

    def pixels(self, codes: Tensor, grid: TokenGrid) -> Tensor:
        """Pictures `[B, 3, H, W]` in [0, 1] of the codes `[B, rows · columns]`."""

    def codebook(self) -> Tensor | None:
        """The vectors `[V, C]` that stand for the codes, as distances are measured between them."""


class TransformersImageModel(ImageModel, Protocol):
    """A family that transformers has: its network and processor come from one folder.

    Attributes:
        component_classes: classes by component, "module:Class". "model" and "processor" lie in the
            folder itself, other components in a folder of their name.
    """

    component_classes: ClassVar[dict[str, str]]

    def __init__(self, model: Any, processor: Any) -> None: ...


class VqImageModel:
    """Base of the image models: token ids in front, a VQ decoder behind; see `ImageModel`.

    Args:
        network: one of transformers' models, with its image tokenizer at `model.vqmodel`.
        processor: its own, or a tokenizer.
    """

    def __init__(self, network: Any, processor: Any) -> None:
        self.network, self.processor = network, processor

    @staticmethod
    def classes_of(family: str) -> dict[str, str]:
        """The `component_classes` of one of transformers' families."""
        model, processor = f"{family}ForConditionalGeneration", f"{family}Processor"
        return {"model": f"transformers:{model}", "processor": f"transformers:{processor}"}

    def uncaptioned(self, condition: Tensor) -> Tensor:
        return condition  # "no caption" is text

    def embed(self, condition: Tensor) -> Tensor:
        return self.network.get_input_embeddings()(condition)

    def codebook(self) -> Tensor:
        return self.network.model.vqmodel.quantize.embedding.weight


def tokenize(
    processor: Any, texts: list[str], turn: Callable[[str], str] | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Left-padded token ids `[B, T]` of texts, and the mask `[B, T]`, True where a token stands.

    Args:
        texts: a user's; the processor's placeholders in them are text.
        turn: what a chat template makes of a text; None: it stays.
        options: of the processor's call.
    """

    def lay_out(texts: list[str]) -> dict[str, Tensor]:
        how = dict(options)
        if turn is not None:
            texts = [turn(text) for text in texts]
            how |= one_start(processor.tokenizer, texts)
        batch = processor(text=texts, padding=True, padding_side="left", return_tensors="pt", **how)
        return {name: batch[name] for name in ("input_ids", "attention_mask")}

    batch = spelled(processor, texts, lay_out)
    return batch["input_ids"], batch["attention_mask"].bool()


def to_unit_range(pixels: Tensor, image_processor: Any) -> Tensor:
    """Pixels in [0, 1] of what the model decoded, `[B, 3, H, W]`: its processor's inverse.

    The processor itself goes on to whole bytes, rounded down.
    """
    pixels = pixels.float()
    if image_processor.do_normalize:
        mean, std = (
            torch.tensor(value, device=pixels.device).expand(pixels.shape[1])[:, None, None]
            for value in (image_processor.image_mean, image_processor.image_std)
        )
        pixels = pixels * std + mean
    return pixels.clamp(0, 1)


# by `model_type` in config.json
FAMILIES = Registry(
    "image model",
    {
        "chameleon": "mmspec.models.transformers.chameleon_image:ChameleonImageModel",
        "emu3": "mmspec.models.transformers.emu3:Emu3ImageModel",
        "janus": "mmspec.models.transformers.janus:JanusImageModel",
    },
)
