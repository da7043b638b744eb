"""Helpers that the rules on normal laws share; all of them have diagonal covariances."""

from __future__ import annotations

import torch
from torch import Tensor

from ...coins import RoundCoins
from ...draft import Draft, Scores, Verdict
from ...laws import ContractError, Gaussian
from ..chain import pick, prefix_verdict


def normal_laws(draft: Draft, scores: Scores, rule: str) -> tuple[Gaussian, Gaussian]:
    """The target's laws at a chain's nodes, and what these were drawn from, float64 `[B, N, C]`.

    Raises:
        ContractError: a tree, or nodes or a target whose laws are not `Gaussian`.
    """
    if draft.parents is not None:
        raise ContractError(f"the {rule} rule judges chains; this draft is a tree")
    if not isinstance(draft.law, Gaussian):
        name = type(draft.law).__name__
        raise ContractError(f"the {rule} rule takes Gaussian laws, not {name}")
    p, q = scores.gaussian, draft.law
    return (
        Gaussian(p.mean[:, : draft.nodes].double(), p.std[:, : draft.nodes].double()),
        Gaussian(q.mean.double(), q.std.double()),
    )


def log_ratio(p: Gaussian, q: Gaussian, x: Tensor) -> Tensor:
    """log p(x) − log q(x) for `x [..., C]`, `[...]`.

    −∞ where p has no density, as behind a denoising step that adds no noise.
    """
    ours, theirs = (x - p.mean) / p.std, (x - q.mean) / q.std
    # the difference of their squares, which is rounded alike when the two change places
    apart, both = theirs - ours, theirs + ours
    ratio = torch.addcmul((q.std / p.std).log(), apart, both, value=0.5).sum(-1)
    return torch.where((p.std > 0).all(-1), ratio, -torch.inf)


def law_at(law: Gaussian, index: Tensor) -> Gaussian:
    """Gather the law at `index [B]` of every row's laws `[B, K, C]`, in float64 `[B, C]`."""
    return Gaussian(*parts_at((law.mean, law.std), index))


def parts_at(parts: tuple[Tensor, ...], index: Tensor) -> tuple[Tensor, ...]:
    """Gather what stands at `index [B]` in each of several `[B, K, C]`, in float64 `[B, C]`."""
    return pick(torch.cat(parts, -1), index).double().chunk(len(parts), -1)


def plain_verdict(draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
    """Plain sampling, where nothing is drafted: one vector from p."""
    own = own_draw(law_at(scores.gaussian, draft.lengths), coins)
    return prefix_verdict(draft, draft.lengths, own.to(draft.tokens))


def own_draw(law: Gaussian, coins: RoundCoins) -> Tensor:
    """A vector `[B, C]` from each law `[B, C]`: the bonus token, or that of plain sampling."""
    return torch.addcmul(law.mean, law.std, coins.normal((law.mean.shape[-1],)))
