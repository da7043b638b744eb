"""Falcon (Gao et al. 2025): an EAGLE-like head that says k tokens a call.

Two LSTM layers join a token's embedding and the hidden state in front of it, and one decoder layer
reads them through a relaxed causal mask: within a block of k columns each sees the others. What the
layer gives at a column stands for the target's hidden state k columns behind the one that came in.

The released LSTM runs along the batch and not along the text (`batch_first` is left out), so at
inference each column is a sequence of its own that begins with a state of zeros. So it is here.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .eagle1 import EagleNetwork
from .sizes import HeadSizes

GATES = 4  # input, forget, cell, output


class ColumnLstm(nn.Module):
    """Two layers of an LSTM, a step from a state of zeros, under the tensor names of `nn.LSTM`.

    `h = σ(o) · tanh(σ(i) · tanh(g))`; forget gates and recurrent weights meet zeros alone. The
    latter are kept for the files.

    Args:
        width: of the inputs.
        hidden: of the outputs.
        bias: it has biases.
    """

    def __init__(self, width: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        for layer, inputs in enumerate((width, hidden)):
            weight = nn.Parameter(torch.empty(GATES * hidden, inputs))
            self.register_parameter(f"weight_ih_l{layer}", weight)
            self.register_buffer(f"weight_hh_l{layer}", torch.zeros(GATES * hidden, hidden))
            for name in (f"bias_ih_l{layer}", f"bias_hh_l{layer}") if bias else ():
                self.register_parameter(name, nn.Parameter(torch.zeros(GATES * hidden)))
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """Outputs `[…, hidden]` of inputs `[…, width]`."""
        for layer in range(2):
            weight = self.get_parameter(f"weight_ih_l{layer}")
            bias = None
            if self.bias:
                own = (self.get_parameter(f"bias_{kind}_l{layer}") for kind in ("ih", "hh"))
                bias = torch.stack([*own]).sum(0)
            i, _, g, o = F.linear(x, weight, bias).chunk(GATES, dim=-1)
            x = o.sigmoid() * (i.sigmoid() * g.tanh()).tanh()
        return x


class FalconNetwork(EagleNetwork):
    """The network; it has one decoder layer, whose entries owe nothing to where blocks begin.

    Args:
        sizes, vocab_size: see `EagleNetwork`.
        block: k, tokens that a call drafts.
        bias: the LSTM has biases.
    """

    def __init__(
        self, sizes: HeadSizes, vocab_size: int | None, block: int = 2, bias: bool = True
    ) -> None:
        super().__init__(sizes, vocab_size)
        if block < 1:
            raise ValueError(f"a block has at least 1 token, not {block}")
        del self.fc
        self.lstm = ColumnLstm(2 * self.width, self.width, bias)
        self.block = block

    def joined(self, embedded: Tensor, hidden: Tensor, context: Tensor | None = None) -> Tensor:
        x: Tensor = self.lstm(torch.cat([embedded, hidden], dim=-1))
        return x
