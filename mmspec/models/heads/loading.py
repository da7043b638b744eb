"""Draft heads by name, and from a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...errors import InputError
from ...files import read_object
from ...methods.registry import HEADS
from ..hub import downloaded
from ..loading import cast, load_model
from .formats.files import HeadFiles
from .formats.registry import read_head
from .judge import JudgeHead
from .published.head import PublishedHead
from .step_router import StepRouter


def network_class(name: str) -> type[nn.Module]:
    """The class of the network of the head called `name`."""
    return HEADS.get(name).load()


def load_head(
    folder: str | Path,
    dtype: torch.dtype = torch.float32,
    kind: str | None = None,
) -> PublishedHead:
    """A draft head from its files, in `dtype`, on the CPU.

    Published heads of many formats are read, see `docs/draft_heads.md`; the format is told by
    `config.json` and the tensors' names.

    Args:
        folder: a path, or the name of a repository on the hub.
        kind: "msd" for a head of MSD, whose files look like EAGLE-1's; None: told by the files.

    Raises:
        InputError: the folder holds no head, or its weights don't fit its config.
    """
    folder = head_folder(folder)
    name = read_object(Path(folder) / "config.json").get("_class_name")
    if name is not None:
        raise InputError(
            f"{folder} holds a {name}, no draft head in a published layout; train it again (mmspec "
            "train vlm-head), or load the pipeline with heads=None"
        )
    head = read_head(HeadFiles.read(folder), kind)
    return cast(head, dtype)


def load_judge(folder: str | Path, dtype: torch.dtype = torch.float32) -> JudgeHead:
    """The judge of drafted tokens from its files, in `dtype`, on the CPU.

    Raises:
        InputError: the folder holds none, or its weights don't fit its config.
    """
    return load_model(JudgeHead, folder, dtype)


def load_router(folder: str | Path, dtype: torch.dtype = torch.float32) -> StepRouter:
    """The router of drafted steps from its files, in `dtype`, on the CPU.

    Raises:
        InputError: the folder holds none, or its weights don't fit its config.
    """
    return load_model(StepRouter, folder, dtype)


def head_folder(folder: str | Path) -> Path:
    """The folder itself, or where the hub's files of that name are."""
    path = Path(folder)
    if path.exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", str(folder)):
        return path
    return downloaded(str(folder), ["*.json", "*.safetensors", "*.bin", "*.pt"])


class DraftHeads(nn.ModuleDict):
    """The heads of one target by name, as one component of a pipeline.

    Raises:
        InputError: a head is of another kind than its name says.
    """

    def __init__(self, heads: Mapping[str, PublishedHead]) -> None:
        for name, head in heads.items():
            if name != head.method:
                raise InputError(f"the head {name!r} is one of {head.method!r}; call it that")
        super().__init__(heads)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    def save_pretrained(self, folder: Path, max_shard_size: str = "") -> None:
        """Write every head into a folder of its name, each in one file."""
        heads: dict[str, Any] = dict(self)
        for name, head in heads.items():
            head.save_pretrained(folder / name)
