"""Weights of other people's networks, read without running anything that the file holds."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..errors import InputError, reason


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of a PyTorch file that holds a plain state dict.

    Both of PyTorch's formats are read: the weights of Inception-v3 were published in the old one.

    Raises:
        InputError: no such file, not such a file, or one that would run code to be read.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no weights file {path}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise InputError(f"can't read weights {path}: {reason(error)}") from error
    except Exception as error:  # torch.load raises what its parsers raise
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"can't read weights {path}: {first}") from error
    if not isinstance(weights, dict) or not all(isinstance(w, Tensor) for w in weights.values()):
        raise InputError(f"{path} holds no state dict: save the network's `state_dict()` alone")
    return dict(weights)
