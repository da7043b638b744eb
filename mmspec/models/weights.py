"""Files of weights, whoever wrote them: read in one place, without running anything they hold."""

from __future__ import annotations

import math
import pickle
import re
import zipfile
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from ..errors import InputError, reason

_FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
WRAPPED = ("model", "module", "state_dict")  # names under which training scripts put a state dict


def read_tensors(path: str | Path, keys: Sequence[str] = ()) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of a PyTorch file that holds a state dict.

    Both of PyTorch's formats are read, and no code in them is run.

    Args:
        keys: names that the state dict may lie under in the file, first choice first.

    Raises:
        InputError: no such file, not such a file, or one that would run code to be read.
    """
    data = _read(Path(path))
    if isinstance(data, dict):
        data = next((data[key] for key in keys if key in data), data)
    if not isinstance(data, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in data.items()
    ):
        raise InputError(f"{path} holds no state dict: save the network's `state_dict()` alone")
    return dict(data)


class FileHeader(NamedTuple):
    """Header of a tensor in a safetensors file."""

    shape: list[int]
    dtype: str  # such as F32 or I8

    @property
    def whole(self) -> bool:
        """True if its values are whole numbers."""
        return not self.dtype.startswith(("F", "BF", "C"))


def read_heads(files: Sequence[Path]) -> dict[str, FileHeader]:
    """The heads of the tensors of safetensors files, by name; values are not read.

    Raises:
        InputError: a file is unreadable.
    """
    heads: dict[str, FileHeader] = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - no mapping
                    tensor = file.get_slice(name)
                    heads[name] = FileHeader(tensor.get_shape(), tensor.get_dtype())
        except Exception as error:
            raise InputError(f"can't read weights {path}: {reason(error)}") from error
    return heads


def stored_dtype(folder: Path) -> torch.dtype:
    """The dtype that most numbers in a folder's safetensors files have.

    It is float32 where there are no such files, or most numbers are in eight bits or fewer.
    """
    files, sizes = sorted(folder.glob("*.safetensors")), Counter[str]()
    for path in files:
        check_regular(path)
    for head in read_heads(files).values():
        sizes[head.dtype] += math.prod(head.shape)
    most = max(sizes, key=lambda name: sizes[name], default="F32")
    return _FLOATS.get(most, torch.float32)


def read_some(files: Sequence[Path], names: Sequence[str]) -> dict[str, Tensor]:
    """Tensors of safetensors files by name; the others are not read.

    Raises:
        InputError: a file is unreadable.
    """
    tensors: dict[str, Tensor] = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for name in {*file.keys()} & {*names}:
                    tensors[name] = file.get_tensor(name)
        except Exception as error:
            raise InputError(f"can't read weights {path}: {reason(error)}") from error
    return tensors


def check_regular(path: Path) -> None:
    """Raise an `InputError` unless there is a file that ends: a pipe would be waited for."""
    if not path.exists():
        raise InputError(f"no weights file {path}")
    if not path.is_file():
        raise InputError(f"can't read {path}: it is no regular file")


def _read(path: Path) -> Any:
    check_regular(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # training scripts store their arguments beside the weights
        with torch.serialization.safe_globals([Namespace]):
            mapped = zipfile.is_zipfile(path)
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        code = re.search(r"GLOBAL (\S+)", str(error))
        what = f"code ({code[1]})" if code else "something"
        raise InputError(f"can't read weights {path}: it holds {what} beside tensors") from error
    except Exception as error:  # the libraries raise what their parsers raise
        raise InputError(f"can't read weights {path}: {reason(error)}") from error
