"""What the prefix rules on chains share."""

from __future__ import annotations

import torch
from torch import Tensor

from ..types import Draft, Verdict


def token_probs(probs: Tensor, tokens: Tensor) -> Tensor:
    """The probability of each token, `[B, N]`, under `probs [B, N, V]`."""
    return probs.gather(-1, tokens[..., None]).squeeze(-1)


def prefix_verdict(draft: Draft, accepted: Tensor, token: Tensor) -> Verdict:
    """The verdict that keeps the first `accepted [B]` nodes and emits `token [B]` after them."""
    nodes = torch.arange(draft.nodes, device=accepted.device)
    emitted = torch.cat([draft.tokens, token[:, None]], dim=1)
    emitted = emitted.scatter(1, accepted[:, None], token[:, None])
    return Verdict(nodes < accepted[:, None], accepted, emitted, accepted + 1)
