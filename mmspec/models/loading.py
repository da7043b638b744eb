"""Strict loading: a checkpoint fits its model tensor by tensor, or one line says what does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import logging

from ..errors import InputError, reason
from ..files import read_object
from .bounded_init import bounded_init, build_empty, check_layers
from .tokenizer_folder import load_words
from .weights import check_regular, read_heads, read_tensors

M = TypeVar("M", bound=nn.Module)
WEIGHTS = "diffusion_pytorch_model.safetensors"
TRANSFORMERS = "model.safetensors"  # the same in transformers' folders


def load_model(
    cls: type[M], folder: str | Path, dtype: torch.dtype = torch.float32, variant: str | None = None
) -> M:
    """A model saved by `save_pretrained`, in `dtype`, on the CPU.

    Args:
        variant: of the weights' files, such as "fp16"; None: those without.

    Raises:
        InputError: folder or file missing or unreadable, or a tensor missing, unexpected or of
            another shape (the first few are named), or the config is far larger than the weights.
    """
    folder = Path(folder)
    config = read_object(folder / "config.json")
    heads = read_heads(weight_files(folder, variant=variant))
    build: Callable[[], M] = partial(cls.from_config, config)  # type: ignore[attr-defined]
    model = build_empty(build, heads, folder / "config.json", cls.__name__)
    return cast(load_strict(model, read_weights(folder, variant=variant), folder), dtype)


def cast(model: M, dtype: torch.dtype) -> M:
    """The model in `dtype`, ready for inference.

    By nn.Module's own `to`: Diffusers' warns about modules that are to stay in float32, of none.
    """
    return nn.Module.to(model, dtype).eval()


def load_component(
    kind: Any,
    folder: Path,
    dtype: torch.dtype,
    variant: str | None = None,
    family: str | None = None,
) -> Any:
    """Load a component of a pipeline folder: a network of ours or a class of transformers.

    Args:
        variant: of the weights' files, such as "fp16"; None: those without.
        family: of a tokenizer, see `load_words`.
    """
    if issubclass(kind, ModelMixin):
        return load_model(kind, folder, dtype, variant)
    if not folder.is_dir():
        raise InputError(f"no folder {folder}")
    for file in folder.iterdir():  # the library opens what it finds
        if file.suffix in (".json", ".jinja", ".model", ".txt") and file.exists():
            check_regular(file)
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # what does not fit is reported below
    try:
        if not issubclass(kind, PreTrainedModel):
            return load_words(kind, folder, family)
        heads = read_heads(weight_files(folder, TRANSFORMERS, variant))
        check_layers(read_object(folder / "config.json"), heads, folder / "config.json")
        how = dict(dtype=dtype, variant=variant, use_safetensors=True, output_loading_info=True)
        with bounded_init(heads, folder / "config.json"):
            model, report = kind.from_pretrained(folder, ignore_mismatched_sizes=True, **how)
    except Exception as error:  # the library raises what its parsers raise
        if isinstance(error, InputError) and str(folder) in str(error):
            raise
        raise InputError(f"can't load {folder}: {reason(error)}") from error
    finally:
        logging.set_verbosity(verbosity)
    missing, unexpected, other_shapes = (
        sorted(report[f"{kind}_keys"]) for kind in ("missing", "unexpected", "mismatched")
    )
    whole = [
        (name, heads[name].dtype)
        for name, value in model.state_dict().items()
        if name in heads and value.is_floating_point() and heads[name].whole
    ]
    refuse_misfits(folder, kind.__name__, missing, unexpected, other_shapes, whole)
    return model.eval()


def load_strict(model: M, weights: dict[str, Tensor], source: str | Path) -> M:
    """The model with `weights`, in their own dtype; names and shapes must match exactly.

    A weight that layers share stays one.

    Raises:
        InputError: they do not match, or there are two tensors for a weight that is shared.
    """
    check_tensors(model.state_dict(), weights, source, type(model).__name__)
    names: dict[int, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), []).append(name)
    model.load_state_dict(weights, assign=True)
    for first, *others in names.values():
        for other in others:
            if not torch.equal(weights[first], weights[other]):
                raise InputError(f"{source}: {first} and {other} are one weight, and differ here")
            home, _, own = other.rpartition(".")
            setattr(model.get_submodule(home), own, model.get_parameter(first))
    return model


def check_tensors(
    expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: str | Path, name: str
) -> None:
    """Raise an `InputError` unless `weights` has the names and shapes of `expected`.

    Whole numbers where `expected` has others don't fit either: they are of a quantized model.
    """
    both = [(key, weights[key], value) for key, value in expected.items() if key in weights]
    refuse_misfits(
        source,
        name,
        [key for key in expected if key not in weights],
        [key for key in weights if key not in expected],
        [(key, one.shape, other.shape) for key, one, other in both if one.shape != other.shape],
        [(k, a.dtype) for k, a, b in both if b.is_floating_point() > a.is_floating_point()],
    )


def refuse_misfits(
    source: str | Path,
    name: str,
    missing: Iterable[str],
    unexpected: Iterable[str],
    other_shapes: Iterable[tuple[str, Iterable[int], Iterable[int]]],
    whole: Iterable[tuple[str, object]] = (),
) -> None:
    """Raise an `InputError` that names the first of the tensors that do not fit a model.

    Args:
        source: of the weights, and the model's `name`.
        missing, unexpected: names of tensors.
        other_shapes: names with the shapes that are found and wanted.
        whole: names with dtypes of tensors that hold whole numbers where floats are wanted.
    """
    problems = [f"missing tensor {key}" for key in missing]
    problems += [f"unexpected tensor {key}" for key in unexpected]
    problems += [
        f"tensor {key} has shape {tuple(found)}, expected {tuple(wanted)}"
        for key, found, wanted in other_shapes
    ]
    problems += [
        f"tensor {key} holds whole numbers ({dtype}), expected floating point"
        for key, dtype in whole
    ]
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise InputError(f"{source} does not fit {name}: {'; '.join(problems[:3])}{more}")


def read_weights(
    folder: Path, file: str = WEIGHTS, variant: str | None = None
) -> dict[str, Tensor]:
    """The tensors of a folder's safetensors file, or of its shards."""
    weights: dict[str, Tensor] = {}
    for path in weight_files(folder, file, variant):
        weights.update(read_tensors(path))
    return weights


def weight_files(folder: Path, file: str = WEIGHTS, variant: str | None = None) -> list[Path]:
    """The safetensors file of a folder, or its shards: regular files that lie in the folder.

    The hub's cache, whose folders are links to its own blobs, is such a folder.

    Raises:
        InputError: one is missing, lies elsewhere, or is no regular file; the index is damaged.
    """
    suffix = "" if variant is None else f".{variant}"
    index = folder / f"{file}.index{suffix}.json"
    names = [str(Path(file).with_suffix(f"{suffix}.safetensors"))]
    # transformers takes the one file where there is one, and Diffusers the shards
    if index.exists() and not (file == TRANSFORMERS and (folder / names[0]).exists()):
        shards = read_object(index).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(s, str) for s in shards.values()):
            raise InputError(f"{index} holds no weight_map")
        names = sorted(set(shards.values()))
    paths = [folder / name for name in names]
    home = folder.resolve()
    homes = [home]
    for snapshot in (home, *home.parents):
        if snapshot.parent.name == "snapshots":
            homes.append(snapshot.parent.parent / "blobs")
    for path in paths:
        check_regular(path)
        if not any(path.resolve().is_relative_to(inside) for inside in homes):
            raise InputError(f"can't read weights {path}: it lies outside of {folder}; copy it in")
    return paths
