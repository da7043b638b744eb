"""The published LlamaGen checkpoints, as the authors released them.

`t2i_XL_stage1_256.pt`, `c2i_XL_384.pt` and their like, and `vq_ds16_t2i.pt`: pickled state dicts
under "model" (transformers saved by DeepSpeed: "module" or "state_dict"; by FSDP: the whole file).
They are read with `weights_only=True` and loaded strictly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from ..loading import cast, load_strict
from ..weights import WRAPPED, read_tensors
from .transformer import LlamaGenTransformer
from .vq import VQModel

SIZES: dict[int, dict[str, int]] = {  # of the authors' models, by width
    768: {"n_layer": 12, "n_head": 12},  # GPT-B
    1024: {"n_layer": 24, "n_head": 16},  # L
    1280: {"n_layer": 36, "n_head": 20},  # XL
    1536: {"n_layer": 48, "n_head": 24},  # XXL
    2560: {"n_layer": 48, "n_head": 40},  # XXXL
    2048: {"n_layer": 22, "n_head": 32},  # 1B
    3200: {"n_layer": 24, "n_head": 32},  # 3B
    4096: {"n_layer": 32, "n_head": 32},  # 7B
}
# what the authors draw with: sample_t2i.py and sample_c2i.py
CAPTIONED = {"sample_guidance": 7.5, "sample_top_k": 1000, "clean_captions": True}
CLASSES = {"sample_guidance": 4.0, "sample_top_k": 2000}


def load_llamagen(
    path: str | Path, dtype: torch.dtype = torch.float32, grid: int | None = None
) -> LlamaGenTransformer:
    """A released transformer, told captions or classes; the tensors' shapes tell the sizes.

    Args:
        grid: side of its token grid: 16, 24 and 32 are 256, 384 and 512 px of VQ-16. Few files
            tell it; None: as this one does.

    Raises:
        InputError: unreadable, of a width that was not released, a tensor does not fit, or nobody
            tells the grid.
    """
    weights = read_tensors(path, WRAPPED)
    rotary = weights.pop("freqs_cis", None)  # derived: where it is, it tells the grid
    try:
        vocab_size, dim = weights["tok_embeddings.weight"].shape
        config = _condition(weights)
    except KeyError as error:
        raise InputError(
            f"{path} is no LlamaGen checkpoint: missing tensor {error.args[0]}"
        ) from error
    except ValueError as error:
        wrong = "tok_embeddings.weight or the embedding of its condition is no matrix"
        raise InputError(f"{path}: {wrong}") from error
    if dim not in SIZES:
        raise InputError(f"{path}: no released LlamaGen is {dim} wide")
    if rotary is not None:
        told = math.isqrt(max(0, len(rotary) - config["cls_token_num"]))
        if grid not in (None, told) or told**2 + config["cls_token_num"] != len(rotary):
            size = f"{grid}×{grid}" if grid else "a square"
            raise InputError(f"{path} has freqs_cis of {len(rotary)} places, which are not {size}")
        grid = told
    if grid is None:
        raise InputError(
            f"{path} does not tell how large its pictures are: say image_size=256, 384 or 512, "
            "that is, grid=16, 24 or 32"
        )
    try:
        with torch.device("meta"):
            model: LlamaGenTransformer = LlamaGenTransformer(
                vocab_size=vocab_size, block_size=grid**2, dim=dim, **SIZES[dim], **config
            )
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    return cast(load_strict(model, weights, path), dtype)


def _condition(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """The part of a transformer's config that says what it is told, of tensors' shapes."""
    if "cls_embedding.embedding_table.weight" in weights:
        rows, _ = weights["cls_embedding.embedding_table.weight"].shape  # the last: no class
        return {"model_type": "c2i", "num_classes": rows - 1, "cls_token_num": 1, **CLASSES}
    tokens, width = weights["cls_embedding.uncond_embedding"].shape
    return {"caption_dim": width, "cls_token_num": tokens, **CAPTIONED}


def load_vq(path: str | Path, dtype: torch.dtype = torch.float32) -> VQModel:
    """A released VQ-16 or VQ-8 tokenizer.

    Raises:
        InputError: unreadable, or a tensor does not fit.
    """
    weights = read_tensors(path, WRAPPED)
    eight = not any(name.startswith("encoder.conv_blocks.4.") for name in weights)
    with torch.device("meta"):
        model: VQModel = VQModel(ch_mult=(1, 2, 2, 4) if eight else (1, 1, 2, 2, 4))
    return cast(load_strict(model, weights, path), dtype)
