"""Another processor's rounding, on this one: `pytest --other-rounding SEED`.

Kernels add up in an order that hangs on the processor, and on the sizes, strides and alignment of
what they are given. Here each product of matrices, convolution and attention gets an error of up to
one unit in the last place, drawn from a seed and from just that: sizes, strides, alignment. What is
exact anywhere stays exact. The same work on the same layout gives the same bits, as on a machine;
the same work on another layout does not. A test that fails under this demands bits that no one
promises, and would fail on some machine.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F

FUNCTIONS: list[tuple[Any, str]] = [
    (F, "linear"),
    (F, "conv1d"),
    (F, "conv2d"),
    (F, "conv3d"),
    (F, "scaled_dot_product_attention"),
    (F, "layer_norm"),
    (F, "group_norm"),
    (torch, "matmul"),
    (torch, "bmm"),
    (torch, "baddbmm"),
    (torch, "addmm"),
    (torch, "einsum"),
    (torch.Tensor, "matmul"),
    (torch.Tensor, "__matmul__"),
    (torch.Tensor, "bmm"),
    (torch, "mkldnn_convolution"),
    (torch.ops.mkldnn, "_linear_pointwise"),
]


def layout(value: Any) -> Any:
    """What a kernel's order of additions hangs on."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            return tuple(value.shape)
        place = value.data_ptr() % 64 if value.device.type == "cpu" else 0
        return (tuple(value.shape), value.stride(), place)
    if isinstance(value, (list, tuple)):
        return tuple(map(layout, value))
    return None


@functools.lru_cache(maxsize=256)
def error(seed: int, key: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Factors `shape` of one unit in the last place more, less or none."""
    coins = torch.Generator().manual_seed(zlib.crc32(repr((seed, key)).encode()))
    with torch.inference_mode(False), torch.no_grad():  # gradients flow through it, too
        steps = torch.randint(-1, 2, shape, generator=coins, dtype=torch.int8)
        return 1 + steps.to(dtype) * torch.finfo(dtype).eps


def rounded(function: Callable[..., Any], name: str, seed: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        out = function(*given, **named)
        if (
            not isinstance(out, torch.Tensor)
            or out.device.type != "cpu"
            or out.dtype not in (torch.float32, torch.float64)
            or torch.compiler.is_compiling()
        ):
            return out
        key = (name, layout(given), layout(list(named.values())))
        exact = (out.detach() * 4096).frac() == 0  # short binary fractions come out right anywhere
        return torch.where(exact, out, out * error(seed, key, tuple(out.shape), out.dtype))

    return call


@contextmanager
def other_rounding(seed: int) -> Iterator[None]:
    """Within it, kernels round as a machine of number `seed` might."""
    patches = [
        patch.object(owner, name, rounded(getattr(owner, name), name, seed))
        for owner, name in FUNCTIONS
    ]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()
