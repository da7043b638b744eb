"""Strict loading: a checkpoint fits its model tensor by tensor, or one line says what does not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from diffusers.models.modeling_utils import ModelMixin
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import logging

from ..errors import InputError, reason
from ..text_file import read_text

M = TypeVar("M", bound=nn.Module)
WEIGHTS = "diffusion_pytorch_model.safetensors"


def load_model(cls: type[M], folder: str | Path, dtype: torch.dtype = torch.float32) -> M:
    """A model saved by `save_pretrained`, in `dtype`, on the CPU.

    Raises:
        InputError: folder or file missing or unreadable, or a tensor missing, unexpected or of
            another shape (the first few are named).
    """
    folder = Path(folder)
    config = read_json(folder / "config.json")
    try:
        with torch.device("meta"):  # no weights are drawn that are then overwritten
            model: M = cls.from_config(config)  # type: ignore[attr-defined]
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise InputError(f"{folder}/config.json is no {cls.__name__}: {first}") from error
    load_strict(model, read_weights(folder), folder)
    return cast(model, dtype)


def cast(model: M, dtype: torch.dtype) -> M:
    """The model in `dtype`, ready for inference.

    By nn.Module's own `to`: Diffusers' warns about modules that are to stay in float32, of none.
    """
    loaded: M = nn.Module.to(model, dtype).eval()
    return loaded


def load_component(kind: Any, folder: Path, dtype: torch.dtype) -> Any:
    """One component of a pipeline folder: one of our networks, or one of transformers' classes."""
    if issubclass(kind, ModelMixin):
        return load_model(kind, folder, dtype)
    if not folder.is_dir():
        raise InputError(f"no folder {folder}")
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # what does not fit is reported below
    try:
        if not issubclass(kind, PreTrainedModel):
            return kind.from_pretrained(folder)
        model, report = kind.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:  # the library raises what its parsers raise
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"can't load {folder}: {first}") from error
    finally:
        logging.set_verbosity(verbosity)
    problems = [f"missing tensor {name}" for name in sorted(report["missing_keys"])]
    problems += [f"unexpected tensor {name}" for name in sorted(report["unexpected_keys"])]
    problems += [
        f"tensor {name} has shape {tuple(found)}, expected {tuple(wanted)}"
        for name, found, wanted in sorted(report["mismatched_keys"])
    ]
    if problems:
        raise InputError(f"{folder} does not fit {kind.__name__}: {'; '.join(problems[:3])}")
    return model.eval()


def load_strict(model: nn.Module, weights: dict[str, Tensor], source: str | Path) -> None:
    """Put `weights` into `model`, in their own dtype; names and shapes must match exactly."""
    check_tensors(model.state_dict(), weights, source, type(model).__name__)
    model.load_state_dict(weights, assign=True)


def check_tensors(
    expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: str | Path, name: str
) -> None:
    """Raise an `InputError` unless `weights` has the names and shapes of `expected`.

    Args:
        source, name: what holds the weights, and what wants them, for the message.
    """
    problems = [f"missing tensor {key}" for key in expected if key not in weights]
    problems += [f"unexpected tensor {key}" for key in weights if key not in expected]
    problems += [
        f"tensor {key} has shape {tuple(weights[key].shape)}, expected {tuple(value.shape)}"
        for key, value in expected.items()
        if key in weights and weights[key].shape != value.shape
    ]
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise InputError(f"{source} does not fit {name}: {'; '.join(problems[:3])}{more}")


def read_weights(folder: Path, file: str = WEIGHTS) -> dict[str, Tensor]:
    """All tensors of a folder's safetensors file, or of its shards."""
    index = folder / f"{file}.index.json"
    names = [file]
    if index.exists():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(s, str) for s in shards.values()):
            raise InputError(f"{index} holds no weight_map")
        names = sorted(set(shards.values()))
    weights: dict[str, Tensor] = {}
    for name in names:
        try:
            weights.update(load_file(folder / name))
        except (OSError, SafetensorError) as error:
            raise InputError(f"can't read weights {folder / name}: {reason(error)}") from error
    return weights


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        value = json.loads(read_text(path))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"can't read {path}: {reason(error)}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} does not hold a JSON object")
    return value
