"""The published Wan2.1 text-to-video checkpoints, and those made causal, as they were released.

Folders of Wan2.1-T2V-1.3B and -14B in the original layout: `config.json` of a `WanModel` and
`diffusion_pytorch_model*.safetensors`. `self_forcing_dmd.pt` and CausVid's `model.pt`: pickled, the
weights under "generator_ema" or "generator", read with `weights_only=True`. All load strictly.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from ...files import read_object
from ..bounded_init import build_empty
from ..loading import cast, load_strict, read_weights
from ..weights import read_tensors
from .transformer import WanTransformer

HEAD_DIM = 128  # of every released size
CLASSES = ("WanModel", "CausalWanModel", "WanTransformer")  # whose folders have these tensor names
_COUNTED = ("local_attn_size", "sink_size")  # of a causal folder's window, in frames
FRAMES = inspect.signature(WanTransformer.__init__).parameters["num_frame_per_block"].default
WRAPPERS = re.compile(r"_(fsdp|checkpoint)_wrapped_module\.")  # that training leaves in names


def load_wan(
    path: str | Path, dtype: torch.dtype = torch.float32, **options: Any
) -> WanTransformer:
    """A released text-to-video model, bidirectional or causal.

    Args:
        path: a folder or a `.pt` file, whose tensors tell the sizes; its heads are 128 wide.
        options: of `WanTransformer`, that neither tells, as `num_frame_per_block` or `window`.

    Raises:
        InputError: unreadable, of another kind of model, or a tensor does not fit.
    """
    path = Path(path)
    if path.is_dir():
        told, weights = _folder_config(path), read_weights(path)
    else:
        told = {}
        weights = read_tensors(path, ("generator_ema", "generator"))
        weights = {WRAPPERS.sub("", name): value for name, value in weights.items()}
        weights = {name.removeprefix("model."): value for name, value in weights.items()}
    config = {**_sizes(weights, path), **told, **options}
    local, sink = (config.pop(name, None) or 0 for name in _COUNTED)
    if local > 0 and "window" not in options:
        config |= _window(local, sink, config.get("num_frame_per_block", FRAMES), path)
    build: Callable[[], WanTransformer] = partial(WanTransformer, **config)
    return cast(load_strict(build_empty(build, weights, path, "Wan"), weights, path), dtype)


def _folder_config(path: Path) -> dict[str, Any]:
    config = read_object(path / "config.json")
    kind, task = config.get("_class_name"), config.get("model_type", "t2v")
    if kind not in CLASSES:
        raise InputError(f"{path} holds a {kind}; the original layout is that of a WanModel")
    if task != "t2v":
        raise InputError(f"{path} holds a model for {task}; text-to-video (t2v) only")
    known = {*inspect.signature(WanTransformer.__init__).parameters, *_COUNTED}
    return {name: value for name, value in config.items() if name in known}


def _window(local: int, sink: int, per: int, path: Path) -> dict[str, int]:
    """The window of a causal folder, which counts frames and the block itself, in blocks."""
    blocks = (local - sink) // per - 1
    if local % per or sink % per or blocks < 1:
        raise InputError(
            f"{path}: local_attn_size {local} and sink_size {sink} are no whole blocks of {per} "
            "frames; give window= and sink= in blocks"
        )
    return {"window": blocks, "sink": sink // per}


def _sizes(weights: dict[str, Tensor], path: Path) -> dict[str, Any]:
    try:
        dim, in_dim, *patch = weights["patch_embedding.weight"].shape
        text_dim = weights["text_embedding.0.weight"].shape[1]
        freq_dim = weights["time_embedding.0.weight"].shape[1]
        ffn_dim = len(weights["blocks.0.ffn.0.weight"])
        out = len(weights["head.head.weight"])
    except KeyError as error:
        raise InputError(f"{path} is no Wan checkpoint: missing tensor {error.args[0]}") from error
    except (IndexError, TypeError, ValueError) as error:
        raise InputError(f"{path}: a tensor of Wan's has another number of dimensions") from error
    numbers = {name.split(".")[1] for name in weights if name.startswith("blocks.")}
    return {
        "patch_size": tuple(patch),
        "in_dim": in_dim,
        "dim": dim,
        "ffn_dim": ffn_dim,
        "freq_dim": freq_dim,
        "text_dim": text_dim,
        "out_dim": out // max(1, math.prod(patch)),
        "num_heads": max(1, dim // HEAD_DIM),
        "num_layers": 1 + max(int(number) for number in numbers if number.isdecimal()),
        "qk_norm": "blocks.0.self_attn.norm_q.weight" in weights,
        "cross_attn_norm": "blocks.0.norm3.weight" in weights,
    }
