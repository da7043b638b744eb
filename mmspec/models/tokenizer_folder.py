"""Tokenizers and processors of folders of transformers' layout, whose code is never run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.auto import tokenization_auto

from ..errors import InputError
from ..files import read_object

TOKENIZER = "tokenizer_config.json"
WHOLE = "tokenizer.json"  # all that a tokenizer is, in the library's own form


def load_words(kind: Any, folder: Path, family: str | None = None) -> Any:
    """The tokenizer or processor in a folder.

    Where a folder names code of its own for its tokenizer, `tokenizer.json` is read instead, or the
    files of a family whose words it has. A Mistral folder's `tokenizer.json` goes before
    `tekken.json`: the package mistral-common has no chat template that others could use.

    Args:
        kind: class of transformers, or one that chooses it.
        family: `model_type` of the family.

    Raises:
        InputError: the tokenizer is code that is not run.
    """
    if not kind.__name__.startswith("Auto"):
        return kind.from_pretrained(folder)
    told: dict[str, Any] = {"trust_remote_code": False}  # else the library asks on the terminal
    if kind is AutoTokenizer:
        config = folder / TOKENIZER
        own_code = config.exists() and "auto_map" in read_object(config)
        if own_code and (folder / WHOLE).exists():
            return PreTrainedTokenizerFast.from_pretrained(folder)
        if own_code and family is not None:
            return AutoTokenizer.from_pretrained(folder, tokenizer_type=family, **told)
        if own_code:
            raise InputError(
                f"{folder}: its tokenizer is code of its own, which is not run; save it as {WHOLE}"
            )
        if (folder / WHOLE).exists() and hasattr(tokenization_auto, "_use_mistral_format"):
            told["mistral_format"] = False
    return kind.from_pretrained(folder, **told)
