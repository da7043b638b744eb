"""What the prefix rules on chains share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..types import Draft, Verdict


def token_probs(probs: Tensor, tokens: Tensor) -> Tensor:
    """The probability of each token, `[B, N]`, under `probs [B, N, V]`."""
    return probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def accepted_prefix(ok: Tensor, draft: Draft) -> Tensor:
    """Nodes before the first of `ok [B, N]` that is False, `[B]`."""
    return torch.minimum(ok.cumprod(1).sum(1), draft.lengths)


def pick(rows: Tensor, index: Tensor) -> Tensor:
    """Of every batch row of `rows [B, K, V]` those at `index [B, ...]`: `[B, ..., V]`."""
    count, size = rows.shape[:2]
    if count > 1:
        first = torch.arange(0, count * size, size, device=index.device)
        index = index + first.view(-1, *[1] * (index.ndim - 1))
    return F.embedding(index, rows.flatten(0, 1))  # whole rows are copied: quicker than a gather


def prefix_verdict(draft: Draft, accepted: Tensor, token: Tensor) -> Verdict:
    """The verdict that keeps the first `accepted [B]` nodes and emits `token [B]` after them."""
    emitted = last = token.unsqueeze(1)
    if draft.nodes:
        emitted = torch.cat([draft.tokens, last], dim=1).scatter_(1, accepted.unsqueeze(1), last)
    return Verdict(accepted, emitted, last, accepted + 1)
