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
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import is_gguf_available, logging

from ...errors import InputError, reason
from ...progress import shown

SUFFIX = ".gguf"


def load_gguf(
    file: Path, dtype: torch.dtype, names: Collection[str] = ("model", "tokenizer")
) -> dict[str, Any]:
    """The `model` of a file, on the CPU, and its `tokenizer`.

    Args:
        names: of the two, those that are wanted.

    Raises:
        InputError: the package `gguf` is missing, or the file is damaged or of an architecture that
            transformers does not read.
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
            parts["tokenizer"] = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        if "model" in names:
            # a bar of tqdm's that no setting leaves out
            with nullcontext() if shown() else redirect_stderr(io.StringIO()):
                model = AutoModelForCausalLM.from_pretrained(
                    file.parent, gguf_file=file.name, dtype=dtype
                )
            parts["model"] = _plain(model).eval()
    except Exception as error:  # the reader raises what its parsers raise
        raise InputError(f"can't read {file} as a language model: {reason(error)}") from error
    finally:
        logging.set_verbosity(verbosity)
    return parts


def unpack_gguf(file: Path, folder: Path) -> None:
    """Write a file's model, in float32, and its tokenizer into a folder of transformers' layout."""
    for part in load_gguf(file, torch.float32).values():
        part.save_pretrained(folder)


def _plain(model: PreTrainedModel) -> PreTrainedModel:
    """The model, whose weights are floats, without transformers' mark that they are in few bits."""
    del model.config.quantization_config
    mine: Any = model
    mine.hf_quantizer, mine.is_quantized = None, False
    return model
