"""Calls of a model in which each layer runs for some of the rows alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..repacked import patched


def running(
    layers: Sequence[nn.Module], use: Sequence[Tensor | bool]
) -> AbstractContextManager[None]:
    """Let every layer run for some rows alone: what skips it keeps its hidden states.

    Args:
        layers: take hidden states first and give nothing else.
        use: by layer, True or False, or which rows `[R, 1, 1]`.
    """
    part = [(layer, rows) for layer, rows in zip(layers, use, strict=True) if rows is not True]
    ways = [(layer, "forward", partial(_of_rows, layer.forward, rows)) for layer, rows in part]
    return patched(ways, over=True)


def _of_rows(
    forward: Callable[..., Tensor], rows: Tensor | bool, hidden: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    if rows is False:
        return hidden
    return torch.where(torch.as_tensor(rows), forward(hidden, *args, **kwargs), hidden)
