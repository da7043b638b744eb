"""Scan of Mamba-2's state space over a tree of tokens in one pass, with the mask of its ancestors.

A state of Mamba-2 decays by one number a token and head. Decays multiply along a path, so what a
token adds to the state behind another one is known from the sum of log-decays between the two, for
all pairs at once. Wu et al. 2025, "STree". `tree_scan_naive` is the slow twin.

`family [S, T, T]` says which tokens each one's path from its root goes through, itself included;
parents stand in front of their children. A chain is the tree whose tokens have one child.
"""

from __future__ import annotations

import torch
from torch import Tensor


def parents_of(family: Tensor) -> Tensor:
    """The last of each token's ancestors `[S, T]`; -1: it is a root."""
    places = torch.arange(family.shape[-1], device=family.device)
    before = family & (places < places[:, None])
    return torch.where(before, places, -1).amax(-1)


def tree_conv(
    inputs: Tensor, parents: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Convolution by channel, in which a token reads itself and its nearest ancestors.

    Args:
        inputs: `[S, T, C]`.
        parents: see `parents_of`.
        state: what stands in front of every root, the last one nearest `[S, W - 1, C]`.
        weight: `[C, W]`, the last for the token itself.
        bias: `[C]`.

    Returns:
        `[S, T, C]`.
    """
    front, channels = state.shape[1], inputs.shape[-1]
    past = torch.arange(-1, front - 1, device=parents.device).expand(len(parents), -1)
    up = torch.cat([past, parents + front], dim=1).clamp_min(0)  # places in `both`
    both = torch.cat([state.to(inputs), inputs], dim=1)
    out, read, at = torch.zeros_like(inputs), inputs, up[:, front:]
    for tap in range(front, -1, -1):
        out = out + read * weight[:, tap]
        read, at = both.gather(1, at[..., None].expand(-1, -1, channels)), up.gather(1, at)
    return out if bias is None else out + bias


def tree_scan(
    x: Tensor, step: Tensor, decay: Tensor, b: Tensor, c: Tensor, family: Tensor, state: Tensor
) -> Tensor:
    """Output of every token: what it reads off the state behind itself.

    A token t with parent p has the state h_t = exp(Δ_t A) h_p + Δ_t x_t B_tᵀ and reads
    y_t = h_t C_t. With S_t the sum of Δ A on t's path, over all s in t's family,
    y_t = Σ_s exp(S_t - S_s) (C_t · B_s) Δ_s x_s + exp(S_t) h_0 C_t.

    Args:
        x: `[S, T, H, P]`, H heads.
        step: Δ, above 0 `[S, T, H]`.
        decay: A, below 0 `[H]`.
        b, c: `[S, T, G, N]`; each of the G groups is that of H / G heads in a row.
        family: see above.
        state: h_0, in front of every root `[S, H, P, N]`.

    Returns:
        `[S, T, H, P]`.
    """
    share = x.shape[2] // b.shape[2]
    total = family.to(step) @ (step * decay)  # [S, T, H]
    between = total[:, :, None] - total[:, None]
    # other branches may decay less than one's own: their exp could be infinite
    between = between.masked_fill(~family[..., None], -torch.inf).exp()  # [S, T, T, H]
    alike = torch.einsum("stgn,sugn->stug", c, b).repeat_interleave(share, -1)
    own = torch.einsum("stuh,suhp->sthp", alike * between, x * step[..., None])
    before = torch.einsum("sthn,shpn->sthp", c.repeat_interleave(share, 2), state)
    return own + before * total.exp()[..., None]


def state_behind(
    x: Tensor, step: Tensor, decay: Tensor, b: Tensor, family: Tensor, state: Tensor, last: Tensor
) -> Tensor:
    """State behind one token of each tree, its path replayed from h_0 `[S, H, P, N]`.

    Args:
        x, step, decay, b, family, state: see `tree_scan`.
        last: number of the token `[S]`.
    """
    rows = torch.arange(len(x), device=x.device)
    total = family.to(step) @ (step * decay)
    end = total[rows, last]  # [S, H]
    left = (end[:, None] - total).masked_fill(~family[rows, last][..., None], -torch.inf).exp()
    b = b.repeat_interleave(x.shape[2] // b.shape[2], 2)
    new = torch.einsum("sth,sthp,sthn->shpn", left * step, x, b)
    return state * end.exp()[..., None, None] + new
