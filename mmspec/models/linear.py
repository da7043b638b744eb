"""Linear maps for few rows: on a CPU `F.linear` packs its weight anew in every call.

Packed once for oneDNN, many rows cost little more than one; `python -m benchmarks micro` measures
how much. A call of oneDNN has a price of its own, though, which a small weight does not pay back
for a single row, and a narrow one never does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

NARROW = 400
TINY = 2**16  # numbers of a weight that no packing pays for
SMALL = 2**19  # numbers of one for which it does not pay if there is a single row


def packable(weight: Tensor) -> bool:
    """True if oneDNN can pack the weight, and packed is how this processor is fast."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


class RowLinear:
    """`x @ weightᵀ` for inference, `weight [out, in]`; where nothing can be packed, `F.linear`.

    A small weight in float32 is kept twice, packed and transposed, the latter for a single row; a
    tiny one is transposed alone.
    """

    def __init__(self, weight: Tensor) -> None:
        self.__setstate__({"weight": weight.detach().contiguous()})

    def __getstate__(self) -> dict[str, Tensor]:  # packed tensors can be neither copied nor stored
        return {"weight": self.weight.to_dense() if self.packed else self.weight}

    def __setstate__(self, state: dict[str, Tensor]) -> None:
        self.weight = weight = state["weight"]
        self.packed, self.transposed = packable(weight) and weight.numel() > TINY, None
        if packable(weight) and weight.numel() <= SMALL and weight.dtype == torch.float32:
            self.transposed = weight.t().contiguous()
        if self.packed:  # the operators that torch.compile's CPU backend puts in for a linear layer
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight)
            self._map = torch.ops.mkldnn._linear_pointwise.default  # spares looking for it by types

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x [..., in]` to `[..., out]`, plus `bias [out]` if there is one."""
        turned = self.transposed
        if turned is not None and (not self.packed or x.numel() == turned.shape[0]):
            return x @ turned if bias is None else x @ turned + bias
        if self.packed:
            out: Tensor = self._map(x, self.weight, bias, "none", [], "")
            return out
        return F.linear(x, self.weight, bias)


class Affine:
    """`x @ weightᵀ + bias` for inference, `weight [out, in]`, `bias [out]`.

    A weight whose input is narrower than `NARROW` is stored transposed, a wide one is packed.
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.bias = bias.detach()
        self.wide = RowLinear(weight) if weight.shape[1] >= NARROW else None
        self.transposed = None if self.wide else weight.detach().t().contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """`x [M, in]` to `[M, out]`."""
        if self.wide is not None:
            return self.wide(x, self.bias)
        assert self.transposed is not None
        return torch.addmm(self.bias, x, self.transposed)
