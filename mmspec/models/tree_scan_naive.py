"""Slow twin of `tree_scan`: every path is walked from its root by itself, a token at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def path_to(family: Tensor, token: int) -> list[int]:
    """Numbers of the tokens from the root to `token`, of one tree `[T, T]`."""
    return [n for n in range(token + 1) if bool(family[token, n])]


def tree_conv_naive(
    inputs: Tensor, family: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Convolution of every path alone, of which the last place is kept; see `tree_conv`."""
    out = torch.zeros_like(inputs)
    for s in range(len(inputs)):
        for t in range(inputs.shape[1]):
            line = torch.cat([state[s], inputs[s, path_to(family[s], t)]])  # [W - 1 + path, C]
            out[s, t] = (line[-weight.shape[1] :] * weight.T).sum(0)
    return out if bias is None else out + bias


def tree_scan_naive(
    x: Tensor, step: Tensor, decay: Tensor, b: Tensor, c: Tensor, family: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs `[S, T, H, P]` and states `[S, T, H, P, N]` of every token; see `tree_scan`."""
    trees, tokens, heads, _ = x.shape
    share = heads // b.shape[2]
    out = torch.zeros_like(x)
    states = state[:, None].repeat(1, tokens, 1, 1, 1)
    for s in range(trees):
        for t in range(tokens):
            for h in range(heads):
                own = state[s, h]
                for n in path_to(family[s], t):
                    # h_t = exp(Δ_t A) h_p + Δ_t x_t B_tᵀ
                    own = own * (step[s, n, h] * decay[h]).exp()
                    own = own + step[s, n, h] * torch.outer(x[s, n, h], b[s, n, h // share])
                states[s, t, h] = own
                out[s, t, h] = own @ c[s, t, h // share]
    return out, states
