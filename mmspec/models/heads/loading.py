"""Draft heads by name, and from a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...errors import InputError
from ...files import read_object
from ...methods.registry import HEADS
from ..loading import load_model
from .base import DraftHead


def head_class(name: str) -> type[DraftHead]:
    """The class of the head called `name`."""
    return HEADS.get(name).load()


def name_of(head: DraftHead) -> str:
    """The name of a head's kind."""
    return next(name for name in HEADS.names() if head_class(name) is type(head))


def load_head(
    folder: str | Path, dtype: torch.dtype = torch.float32, variant: str | None = None
) -> DraftHead:
    """The head that `save_pretrained` put into a folder, in `dtype`, on the CPU.

    Args:
        variant: of the weights' files, such as "fp16"; None: those without.

    Raises:
        InputError: the folder holds no head, or its weights don't fit its config.
    """
    name = read_object(Path(folder) / "config.json").get("_class_name")
    kinds = {kind.__name__: kind for kind in map(head_class, HEADS.names())}
    if name not in kinds:
        raise InputError(f"{folder} holds a {name}, no draft head ({', '.join(kinds)})")
    return load_model(kinds[name], folder, dtype, variant)


class DraftHeads(nn.ModuleDict):
    """The heads of one target by name, as one component of a pipeline.

    Raises:
        InputError: a head is of another kind than its name says.
    """

    def __init__(self, heads: Mapping[str, DraftHead]) -> None:
        for name, head in heads.items():
            if name != name_of(head):
                raise InputError(f"the head {name!r} is one of {name_of(head)!r}; call it that")
        super().__init__(heads)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    def save_pretrained(self, folder: Path, **how: Any) -> None:
        """Write every head into a folder of its name."""
        heads: dict[str, Any] = dict(self)
        for name, head in heads.items():
            head.save_pretrained(folder / name, **how)
