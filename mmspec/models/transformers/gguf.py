"""Language models in GGUF files, llama.cpp's format, as plain models of transformers.

transformers reads the file and turns its weights, whatever bits they are in, into floats; it needs
the package `gguf` for that.
"""

from __future__ import annotations

import io
from collections.abc import Collection
from contextlib import nullcontext, redirect_stderr
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import is_gguf_available, logging

from ...errors import InputError, reason
from ...progress import shown
from ..loading import refuse_misfits
from ..origins import FIELD, GgufOrigin, file_digest, state_digest
from .gguf_header import GgufHeader, take_rotary

SUFFIX = ".gguf"


def load_gguf(
    file: Path,
    dtype: torch.dtype,
    names: Collection[str] = ("model", "tokenizer"),
    package: str = "",
) -> dict[str, Any]:
    """The `model` of a file, on the CPU, and its `tokenizer`.

    The model's configuration tells of the file, see `origins`.

    Args:
        names: of the two, those that are wanted.
        package: the packaged model that the file is, by name; "": it is none.

    Raises:
        InputError: the package `gguf` is missing; or the file is damaged, lacks tensors, is one of
            several of a model, or says what transformers does not read of its architecture.
    """
    if not is_gguf_available():
        raise InputError(
            f"reading {file.name} takes the package gguf, which is not installed: pip install gguf"
        )
    parts: dict[str, Any] = {}
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        if "tokenizer" in names:
            parts["tokenizer"] = AutoTokenizer.from_pretrained(
                file.parent, gguf_file=file.name, trust_remote_code=False
            )
        if "model" in names:
            # a bar of tqdm's that no setting leaves out
            with nullcontext() if shown() else redirect_stderr(io.StringIO()):
                parts["model"] = _model(file, dtype)
            _mark(parts["model"], file, package)
    except InputError:
        raise
    except Exception as error:  # the reader raises what its parsers raise
        raise InputError(f"can't read {file} as a language model: {reason(error)}") from error
    finally:
        logging.set_verbosity(verbosity)
    return parts


def unpack_gguf(file: Path, folder: Path, package: str = "") -> None:
    """Write a file's model, in float32, and its tokenizer into a folder of transformers' layout."""
    for part in load_gguf(file, torch.float32, package=package).values():
        part.save_pretrained(folder)


def _model(file: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The whole model, as its file says it is."""
    header = GgufHeader(file)
    header.check_whole()
    model, report = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=dtype,
        output_loading_info=True,
        **_floats(),
    )
    kinds = (sorted(report[f"{kind}_keys"]) for kind in ("missing", "unexpected", "mismatched"))
    refuse_misfits(file, type(model).__name__, *kinds)
    header.check_biases(model)
    take_rotary(model, header)
    return _plain(model).eval()


def _floats() -> dict[str, Any]:
    """The argument by which weights become floats; else newer versions download a kernel."""
    made = getattr(transformers, "GgufConfig", None)  # before it there were floats alone
    return {} if made is None else {"quantization_config": made(dequantize=True)}


def _mark(model: PreTrainedModel, file: Path, package: str) -> None:
    """Let the model's configuration tell where its weights are from, and what they are."""
    tied = model.all_tied_weights_keys  # written once
    own = {name: part for name, part in model.state_dict().items() if name not in tied}
    origin = GgufOrigin(str(file.resolve()), file_digest(file), state_digest(own), package)
    setattr(model.config, FIELD, origin.to_dict())


def _plain(model: PreTrainedModel) -> PreTrainedModel:
    """The model, whose weights are floats, without transformers' mark that they are in few bits."""
    if hasattr(model.config, "quantization_config"):  # where it still bears the mark
        del model.config.quantization_config
    mine: Any = model
    mine.hf_quantizer, mine.is_quantized = None, False
    return model
