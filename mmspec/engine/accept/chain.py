"""Helpers that the prefix rules on chains share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..coins import RoundCoins
from ..draft import Draft, Scores, Verdict
from ..laws import Categorical, ContractError, OneHot


def chain_laws(draft: Draft, rule: str) -> Tensor | None:
    """Laws that a chain's nodes were drawn from, `[B, N, V]`; None: all were chosen (`OneHot`).

    Raises:
        ContractError: a tree, or a law that does not give every token a probability.
    """
    if draft.parents is not None:
        raise ContractError(f"the {rule} rule judges chains; this draft is a tree")
    if isinstance(draft.law, Categorical):
        return draft.law.probs
    if isinstance(draft.law, OneHot):
        return None
    name = type(draft.law).__name__
    raise ContractError(f"the {rule} rule takes OneHot and Categorical laws, not {name}")


def token_probs(probs: Tensor, tokens: Tensor) -> Tensor:
    """The probability of each token, `[B, N]`, under `probs [B, N, V]`."""
    return probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def ratios(p: Tensor, q: Tensor | None, tokens: Tensor) -> Tensor:
    """p(x) / q(x) of each of `tokens [B, N]`; q is 1 if it is None.

    Args:
        p, q: laws `[B, N, V]`; of p there may be more.
    """
    index = tokens.unsqueeze(-1)
    found = p.gather(-1, index)
    return (found if q is None else found / q.gather(-1, index)).squeeze(-1)


def accepted_prefix(ok: Tensor, draft: Draft) -> Tensor:
    """Nodes before the first of `ok [B, N]` that is False, `[B]`."""
    return torch.minimum(ok.cumprod(1).sum(1), draft.lengths)


def pick(rows: Tensor, index: Tensor) -> Tensor:
    """Gather those at `index [B, ...]` of every batch row of `rows [B, K, V]`: `[B, ..., V]`."""
    count, size = rows.shape[:2]
    if count > 1:
        first = torch.arange(0, count * size, size, device=index.device)
        index = index + first.view(-1, *[1] * (index.ndim - 1))
    return F.embedding(index, rows.flatten(0, 1))  # whole rows are copied: quicker than a gather


def prefix_verdict(draft: Draft, accepted: Tensor, token: Tensor) -> Verdict:
    """Keep the first `accepted [B]` nodes and emit `token`, `[B]` or `[B, C]`, after them."""
    emitted = last = token.unsqueeze(1)
    if draft.nodes:
        at = accepted[:, None] if token.ndim == 1 else accepted[:, None, None].expand_as(last)
        emitted = torch.cat([draft.tokens, last], dim=1).scatter_(1, at, last)
    return Verdict(accepted, emitted, last, accepted + 1)


def recovered_verdict(
    draft: Draft,
    probs: Tensor,
    q: Tensor | None,
    accepted: Tensor,
    coins: RoundCoins,
    spared: Tensor | None = None,
) -> Verdict:
    """Keep the first `accepted [B]` nodes; after a rejection draw from [p − q]+, else from p.

    Args:
        draft: a chain of one node or more.
        probs: the target's laws p `[B, N + 1, V]`.
        q: what the nodes were drawn from, see `chain_laws`.
        accepted, coins: nodes that stand, and where chance comes from.
        spared: `[N]`, for a rule that gives out no more than the share 1 − s of p by accepting node
            n: then s p is left at least, and max([p − q]+, s p) is drawn from.
    """
    weights = pick(probs, accepted)  # [B, V]: p after the kept prefix
    at = accepted.clamp_max(draft.nodes - 1)
    if q is None:
        residual = weights.scatter(1, draft.tokens.gather(1, at[:, None]), 0.0)
    else:
        residual = (weights - pick(q, at)).clamp_min_(0)
    if spared is not None:
        residual = torch.maximum(residual, spared[at, None] * weights)
    # no rejection, or p = q up to rounding, where nothing is left over: p itself
    use = (accepted < draft.lengths) & (residual.sum(-1) > 0)
    weights = torch.where(use[:, None], residual, weights)
    return prefix_verdict(draft, accepted, coins.draw(weights))


def excused_prefix(
    draft: Draft, scores: Scores, q: Tensor | None, excused: Tensor, greedy: bool, coins: RoundCoins
) -> Verdict:
    """The token rule's verdict, or the greedy one, where some nodes stand whatever the target says.

    Args:
        draft: a chain of one node or more, or none.
        scores: the target's.
        q: what the nodes were drawn from, see `chain_laws`.
        excused: nodes that stand if those in front of them do `[B, N]`.
        greedy: a token stands, or replaces what falls, if it is the target's likeliest.
        coins: where chance comes from.
    """
    probs = scores.probs
    if not draft.nodes:
        law = probs[:, 0]
        return prefix_verdict(draft, draft.lengths, law.argmax(-1) if greedy else coins.draw(law))
    p = scores.at_nodes(draft)
    if greedy:
        prob = (p.argmax(-1) == draft.tokens).to(p)
    else:
        prob = token_probs(p, draft.tokens)
        if q is not None:
            prob = prob / token_probs(q, draft.tokens)
    accepted = accepted_prefix(coins.accept(torch.where(excused, 1.0, prob), draft.lengths), draft)
    if not greedy:
        return recovered_verdict(draft, probs, q, accepted, coins)
    return prefix_verdict(draft, accepted, pick(probs, accepted).argmax(-1))
