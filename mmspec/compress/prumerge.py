"""PruMerge: outliers of the class token's attention, with their neighbours merged in.

Shang et al. 2024, section 3, algorithm 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Compressed, check, ranking, take, wide

NEIGHBOURS = 32


def prumerge(
    features: Tensor,
    keep: int | None,
    attention: Tensor,
    keys: Tensor,
    neighbours: int = NEIGHBOURS,
) -> Compressed:
    """`y_i + Σ_j a_j y_j` for each token i kept, j its nearest others by the cosine of their keys.

    Nearest ones are looked for among all tokens, kept ones too, and weights are not normalised:
    both as in the authors' release, whose one more token for all that was pruned is left out.

    Args:
        features: `[B, N, C]`, without a class token.
        keep: tokens K with the most attention, N of them are left as they are; None: as many as are
            outliers, `a > Q3 + 1.5 (Q3 − Q1)`, row by row and at least one.
        attention: `[B, N]`, weights a, from the class token, or the mean that each token gets.
        keys: `[B, N, K]`, of the same layer, all heads side by side.
        neighbours: tokens merged into each kept one.

    Raises:
        InputError: the inputs don't fit each other.
    """
    tokens = features.shape[1] if features.ndim == 3 else 0
    check(features, tokens if keep is None else keep, attention, keys)
    a = wide(attention)
    if keep is None:
        counts = outliers(a).sum(1).clamp_min(1)  # [B]
        keep = int(counts.max())
    elif keep == tokens:
        return Compressed.full(features, torch.arange(tokens, device=a.device).expand_as(a))
    else:
        counts = torch.full_like(a[:, 0], keep, dtype=torch.long)
    mask = torch.arange(keep, device=a.device) < counts[:, None]
    # filling behind the real ones, and those ascending
    index = ranking(a)[:, :keep].masked_fill(~mask, tokens).sort(dim=1).values.masked_fill(~mask, 0)
    unit = F.normalize(wide(keys), dim=-1)
    alike = take(unit, index) @ unit.transpose(1, 2)  # [B, K, N]
    alike = alike.scatter(2, index[..., None], -torch.inf)  # not itself
    near = ranking(alike)[..., : min(neighbours, tokens - 1)]
    weights = torch.zeros_like(alike).scatter(2, near, 1) * a[:, None]
    x = wide(features)
    merged = (take(x, index) + weights.to(x.dtype) @ x) * mask[..., None]
    return Compressed(merged.to(features.dtype), index, mask)


def outliers(attention: Tensor) -> Tensor:
    """Mark attention `[B, N]` above `Q3 + 1.5 IQR` of its row."""
    q1, q3 = attention.quantile(
        torch.tensor([0.25, 0.75], dtype=attention.dtype, device=attention.device), dim=1
    )
    return attention > (q3 + 1.5 * (q3 - q1))[:, None]
