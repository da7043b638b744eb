"""The components of a video pipeline: whether they fit, released ones, and what they are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, T5EncoderModel, UMT5EncoderModel

from ...errors import InputError
from ...files import read_object
from ...models.loading import load_component
from ...models.text_encoder import encode_prompt
from ...models.wan.frame_router import FrameRouter
from ...models.wan.published import load_wan
from ...models.wan.transformer import WanTransformer
from ..base import check_same

BIDIRECTIONAL = ("WanModel", "WanTransformer3DModel")  # in the original layout and in Diffusers'
_SAME = ("in_dim", "num_frame_per_block", "text_dim", "text_len")


def text_encoder_class(folder: Path) -> Any:
    """The class of the text encoder in a folder, by its `config.json`."""
    config = folder / "config.json"
    several = config.exists() and read_object(config).get("model_type") == "umt5"
    return UMT5EncoderModel if several else T5EncoderModel


def check_parts(
    transformer: WanTransformer,
    vae: Any,
    text_encoder: Any,
    tokenizer: Any,
    drafter: WanTransformer | None,
    router: FrameRouter | None,
) -> None:
    """Raise an `InputError` if components do not fit each other."""
    config = transformer.config
    for whose, found, wanted in (
        ("the autoencoder's latents have", vae.config.z_dim, config.in_dim),
        ("the text encoder's features have", text_encoder.config.d_model, config.text_dim),
    ):
        if found != wanted:
            raise InputError(f"{whose} {found} channels, the target reads {wanted}")
    check_same("drafter", drafter, transformer, _SAME)
    if router is not None and router.config.vocab_size < len(tokenizer):
        raise InputError(
            f"the router knows {router.config.vocab_size} words, the tokenizer has {len(tokenizer)}"
        )


def released_parts(
    transformer: str | Path,
    parts: str | Path,
    drafter: str | Path | None,
    dtype: torch.dtype,
    **options: Any,
) -> dict[str, Any]:
    """All components by name; arguments and errors as of `VideoPipeline.from_wan`."""
    for model in (transformer, drafter):
        if model is not None:
            _check_causal(Path(model))
    home = Path(parts)
    classes = {
        "vae": AutoencoderKLWan,
        "text_encoder": text_encoder_class(home / "text_encoder"),
        "tokenizer": PreTrainedTokenizerFast,
    }
    found = {name: load_component(kind, home / name, dtype) for name, kind in classes.items()}
    small = None if drafter is None else load_wan(drafter, dtype, **options)
    return {"transformer": load_wan(transformer, dtype, **options), **found, "drafter": small}


def _check_causal(model: Path) -> None:
    """Raise an `InputError` for a folder of Wan's own model; a file does not tell."""
    config = model / "config.json"
    kind = read_object(config).get("_class_name") if config.exists() else None
    if kind in BIDIRECTIONAL:
        raise InputError(
            f"{model} holds a {kind}, whose frames all read each other; give a block-causal model, "
            "such as Self-Forcing's or CausVid's"
        )


def told(
    tokenizer: Any, encoder: Any, prompts: list[str], untold: list[str] | None, length: int
) -> list[Tensor]:
    """Text features of every clip `[G, T, D]`, of `length` tokens at most: its prompt's, and under
    guidance behind them those of what its unconditional row is told (`untold`).
    """
    return [
        pad_sequence(
            [encode_prompt(tokenizer, encoder, text, length) for text in texts], batch_first=True
        )
        for texts in (zip(prompts) if untold is None else zip(prompts, untold, strict=True))
    ]
