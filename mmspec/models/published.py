"""The published LlamaGen checkpoints, as the authors released them.

`t2i_XL_stage1_256.pt`, `t2i_XL_stage2_512.pt` and `vq_ds16_t2i.pt`: pickled state dicts under
"model" (transformers saved by DeepSpeed or FSDP: "module" or "state_dict"). They are read with
`weights_only=True` and loaded strictly.
"""

from __future__ import annotations

import pickle
import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from .llamagen import LlamaGenTransformer
from .loading import cast, load_strict
from .vq import VQModel

# sizes of the released text-to-image models by their width
T2I_SIZES: dict[int, dict[str, int]] = {1280: {"n_layer": 36, "n_head": 20}}


def read_checkpoint(
    path: str | Path, keys: Sequence[str] = ("model", "module", "state_dict")
) -> dict[str, Tensor]:
    """The state dict of a released `.pt` file; no code in it is ever run.

    Args:
        keys: what it may lie under in the file, first choice first.
    """
    try:
        # the authors' training scripts store their arguments beside the weights
        with torch.serialization.safe_globals([Namespace]):
            data: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        code = re.search(r"GLOBAL (\S+)", str(error))
        what = f"code ({code[1]})" if code else "something"
        raise InputError(f"{path} holds {what} beside tensors and is not loaded") from error
    except (OSError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        if "mmap can only be used" in first:
            first = "not a file of torch.save in its zip format"
        raise InputError(f"can't read checkpoint {path}: {first}") from error
    for key in keys:
        if isinstance(data, dict) and key in data:
            data = data[key]
            break
    if not isinstance(data, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in data.items()
    ):
        raise InputError(f"{path} holds no state dict of tensors")
    return data


def load_llamagen(path: str | Path, dtype: torch.dtype = torch.float32) -> LlamaGenTransformer:
    """A released text-to-image transformer; the sizes are read from the tensors' shapes.

    Raises:
        InputError: unreadable, of a width that was not released, or a tensor does not fit.
    """
    weights = {k: v for k, v in read_checkpoint(path).items() if k != "freqs_cis"}  # derived
    try:
        vocab_size, dim = weights["tok_embeddings.weight"].shape
        tokens, caption_dim = weights["cls_embedding.uncond_embedding"].shape
    except KeyError as error:
        raise InputError(
            f"{path} is no LlamaGen text-to-image checkpoint: missing tensor {error.args[0]}"
        ) from error
    except ValueError as error:
        wrong = "tok_embeddings.weight or cls_embedding.uncond_embedding is no matrix"
        raise InputError(f"{path}: {wrong}") from error
    if dim not in T2I_SIZES:
        raise InputError(f"{path}: no released text-to-image model is {dim} wide")
    # the grid is not stored: 256 px was trained as stage 1, 512 px as stage 2, f = 16
    grid = 32 if "512" in Path(path).name else 16
    with torch.device("meta"):
        model: LlamaGenTransformer = LlamaGenTransformer(
            vocab_size=vocab_size,
            block_size=grid**2,
            dim=dim,
            caption_dim=caption_dim,
            cls_token_num=tokens,
            **T2I_SIZES[dim],
        )
    load_strict(model, weights, path)
    return cast(model, dtype)


def load_vq(path: str | Path, dtype: torch.dtype = torch.float32) -> VQModel:
    """A released VQ-16 or VQ-8 tokenizer.

    Raises:
        InputError: unreadable, or a tensor does not fit.
    """
    weights = read_checkpoint(path)
    eight = not any(name.startswith("encoder.conv_blocks.4.") for name in weights)
    with torch.device("meta"):
        model: VQModel = VQModel(ch_mult=(1, 2, 2, 4) if eight else (1, 1, 2, 2, 4))
    load_strict(model, weights, path)
    return cast(model, dtype)
