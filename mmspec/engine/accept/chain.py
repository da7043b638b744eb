"""What the prefix rules on chains share."""

from __future__ import annotations

import torch
from torch import Tensor

from ..types import Draft, Verdict


def token_probs(probs: Tensor, tokens: Tensor) -> Tensor:
    """The probability of each token, `[B, N]`, under `probs [B, N, V]`."""
    return probs.gather(-1, tokens[..., None]).squeeze(-1)


def accepted_prefix(ok: Tensor, draft: Draft) -> Tensor:
    """Nodes before the first of `ok [B, N]` that is False, `[B]`."""
    return torch.minimum(ok.cumprod(1).sum(1), draft.lengths)


def pick(rows: Tensor, index: Tensor) -> Tensor:
    """Of every batch row of `rows [B, K, V]` the one at `index [B]`: `[B, V]`."""
    return rows.gather(1, index[:, None, None].expand(-1, 1, rows.shape[-1])).squeeze(1)


def prefix_verdict(draft: Draft, accepted: Tensor, token: Tensor) -> Verdict:
    """The verdict that keeps the first `accepted [B]` nodes and emits `token [B]` after them."""
    emitted = token = token[:, None]
    if draft.nodes:
        emitted = torch.cat([draft.tokens, token], dim=1).scatter_(1, accepted[:, None], token)
    return Verdict(accepted, emitted, accepted + 1)
