"""Linear maps over rounded weights, for processors: a half or a quarter of the bytes to read.

A call for few rows waits for its weights, so fewer bytes are less time. Both kinds give a row the
same result whatever rows are beside it; drafted tokens must not change what is said of others.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..methods import registry
from .linear import Affine, RowLinear
from .llama_layers import Linear

MOST_HALF = 65504.0  # float16's largest number
_WEIGHT, _INPUT = 63, 127  # largest numbers of weights and inputs in eight bits, see `Int8Linear`
_LOW = 3  # bits of a weight that `HighBitsLinear` leaves out


class HalfLinear:
    """`x @ weightᵀ` over weights rounded to float16; all arithmetic is in float32.

    Where a checkpoint is stored in float16 nothing is rounded at all.

    Args:
        weight: `[out, in]`, float32, on the processor.
    """

    def __init__(self, weight: Tensor) -> None:
        if float(weight.abs().max()) > MOST_HALF:
            raise InputError("its weights are too large for float16; leave them as they are")
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight.detach().contiguous(), None)

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x [..., in]` to `[..., out]`, plus `bias [out]` if there is one."""
        out = torch.ops.quantized.linear_dynamic_fp16(_rows(x), self.packed)
        return _shaped(out, x, bias)


class Int8Linear:
    """`x @ weightᵀ` over eight-bit weights and inputs, summed in 32 bits.

    A weight has one scale an output, `max |w| / 63`, and an input one a row, `max |x| / 127`: of a
    scale for all rows, as torch's dynamic layers have it, a row would depend on its neighbours. The
    processor's instruction adds two products in 16 bits, `2 · 63 · 255 < 2¹⁵`: with weights up to
    127 it would overflow on those without VNNI. So every processor computes the same.

    Args:
        weight: `[out, in]`, float32, on the processor.
    """

    def __init__(self, weight: Tensor) -> None:
        weight = weight.detach()
        scale = weight.abs().amax(1).clamp_min(torch.finfo(weight.dtype).tiny) / _WEIGHT
        whole = self.kept((weight / scale[:, None]).round().to(torch.int8))
        zeros = torch.zeros(len(whole), dtype=torch.long)
        engine = torch.backends.quantized.engine
        torch.backends.quantized.engine = "fbgemm"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch will once have other tensors in few bits
                made: Any = torch._make_per_channel_quantized_tensor
                self.packed = torch.ops.quantized.linear_prepack(
                    made(whole, scale.double(), zeros, 0), None
                )
        finally:
            torch.backends.quantized.engine = engine

    def kept(self, whole: Tensor) -> Tensor:
        """Keep of the whole numbers that weights are rounded to what a drafter reads, here all."""
        return whole

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x [..., in]` to `[..., out]`, plus `bias [out]` if there is one."""
        rows = _rows(x)
        scale = torch.linalg.vector_norm(rows, torch.inf, dim=-1, keepdim=True)
        unit = rows / scale.clamp_min(torch.finfo(x.dtype).tiny)
        out = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            unit, 1 / _INPUT, 128, self.packed
        )
        return _shaped(out * scale, x, bias)


class HighBitsLinear(Int8Linear):
    """`Int8Linear` of the four high bits of its weights, which has seven: 16 numbers.

    ELMoE-3D's drafter; its choice of experts is `HotExperts`. Bits that are cut off make every
    weight smaller; half of what they are worth is added. Such a drafter needs no weights beside an
    int8 target's. Here it reads as many bytes as that one does, for processors have no instruction
    for four bits: what it shows is how often such drafts stand.
    """

    def kept(self, whole: Tensor) -> Tensor:
        """The high bits, and half of the largest number that the low ones may be."""
        return (whole >> _LOW << _LOW) + 2 ** (_LOW - 1)


def _engines() -> list[str]:
    return list(torch.backends.quantized.supported_engines)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _shaped(out: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """Outputs `[…, out]` for inputs `x […, in]`, of those of rows `[M, out]`, with the bias."""
    out = out.view(*x.shape[:-1], -1)
    return out if bias is None else out + bias


def folded(
    first: Tensor, second: Tensor, norms: tuple[Tensor, Tensor], weights: str | None
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """Two weights `[out, in]` with those of the norms `[in]` in front of them folded in.

    Beside them, the norms that are left: where weights are rounded nothing is folded, for a scale
    an output would have to span what norms stretch.
    """
    if weights is None:
        return first * norms[0], second * norms[1], None
    return first, second, norms


def linear(weight: Tensor, weights: str | None = None) -> Linear:
    """The map of a weight `[out, in]`, rounded as the part `weights` says; None: as it is.

    Raises:
        InputError: see `check_rounding`.
    """
    if weights is None:
        return RowLinear(weight)
    check_rounding(weights, weight)
    made: Linear = registry.WEIGHTS.get(weights).load()(weight)
    return made


class RoundedAffine:
    """`x @ weightᵀ + bias` for inference, over a rounded `weight [out, in]`, see `linear`."""

    def __init__(self, weight: Tensor, bias: Tensor, weights: str) -> None:
        self.map, self.bias = linear(weight, weights), bias.detach()

    def __call__(self, x: Tensor) -> Tensor:
        """`x [M, in]` to `[M, out]`."""
        return self.map(x, self.bias)


def affine(weight: Tensor, bias: Tensor, weights: str | None = None) -> Affine | RoundedAffine:
    """The map of a weight `[out, in]` and a bias `[out]`, rounded as `linear` says.

    Raises:
        InputError: see `check_rounding`.
    """
    return Affine(weight, bias) if weights is None else RoundedAffine(weight, bias, weights)


def check_rounding(weights: str, weight: Tensor) -> None:
    """Raise an `InputError` if weights such as this one, or by this torch, can't be rounded so."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        kind = str(weight.dtype).removeprefix("torch.")
        raise InputError(
            f"weights {weights!r} are for models in float32 on the processor, and this one is in "
            f"{kind} on {weight.device.type}; load it so, or leave the weights as they are"
        )
    if "fbgemm" not in _engines():
        raise InputError(
            f"weights {weights!r} need a torch with FBGEMM, which this processor has not; leave "
            "them as they are"
        )
