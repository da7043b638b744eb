"""Objectives at the places of a draft: distances between a head's laws and the target's.

E[accept] = Σ min(p, q) = 1 − TV(p, q), p the target's law and q the head's: the cross-entropy gets
a head started, and what is accepted is the total variation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ...registry import check_name

FLOOR = 1e-6  # of an acceptance, before its logarithm
LEARNED = 0.4  # of the places that a step learns from beside a reference
RANDOM = "random"  # in a reference's place: as many places, drawn, which a sceptic asks for


@dataclass(frozen=True)
class Places:
    """Places of drafts, N in all, with what the head and the target say there.

    Attributes:
        hidden: hidden states of the head `[N, D]`; of some heads their logits.
        features: those of the target `[N, D]`.
        logits: of the head `[N, K]`, over the tokens that it drafts.
        law: the target's probabilities `[N, K]` of those tokens. They add up to less than 1 where
            the head drafts some tokens alone.
        said: the token that stands there as the head numbers it `[N]`, -1 where it drafts no such
            token.
        at: their numbers in all rows `[N]`, see `HeadBatch.ahead`.
    """

    hidden: Tensor
    features: Tensor
    logits: Tensor
    law: Tensor
    said: Tensor
    at: Tensor


Objective = Callable[[Places], Tensor]
"""The loss of every place `[N]`."""


def eagle(places: Places) -> Tensor:
    """`SmoothL1(features) + 0.1 · CE(laws)` (EAGLE, Li et al. 2024, section 4.2)."""
    near = F.smooth_l1_loss(places.hidden, places.features, reduction="none").mean(-1)
    return near + 0.1 * cross_entropy(places)


def vispec(places: Places) -> Tensor:
    """`10 · Σ|p − q| + 0.1 · ListMLE`, ViSpec's second stage (Kang et al. 2025, section 3.3)."""
    return 10 * total_l1(places) + 0.1 * list_mle(places)


def cross_entropy(places: Places) -> Tensor:
    """`−Σ p log q`: KL(p ‖ q) but for a constant."""
    return -(places.law * places.logits.log_softmax(-1)).sum(-1)


def reverse_divergence(places: Places) -> Tensor:
    """`Σ q log(q / p)`: KL(q ‖ p), which draws the head to what the target thinks likeliest."""
    log_q = places.logits.log_softmax(-1)
    return (log_q.exp() * (log_q - places.law.clamp_min(FLOOR).log())).sum(-1)


def skewed_divergence(places: Places, share: float) -> Tensor:
    """`β KL(p ‖ m) + (1 − β) KL(q ‖ m)`, m = β p + (1 − β) q, β the share of the target's law.

    The generalized Jensen-Shannon divergence (Agarwal et al. 2024), which OSD tries, too (Liu et
    al. 2024). Divided by β it goes to KL(p ‖ q) as β goes to 0, and divided by 1 − β to KL(q ‖ p)
    as β goes to 1.
    """
    p, log_q = places.law, places.logits.log_softmax(-1)
    q = log_q.exp()
    log_m = (share * p + (1 - share) * q).clamp_min(torch.finfo(q.dtype).tiny).log()
    # no quotient within a logarithm: at a probability of 0 its gradient would be no number
    ahead = (torch.xlogy(p, p) - p * log_m).sum(-1)
    behind = (q * (log_q - log_m)).sum(-1)
    return share * ahead + (1 - share) * behind


def total_l1(places: Places) -> Tensor:
    """`Σ |p − q|` over the tokens that the head drafts: with all of them, twice TV(p, q)."""
    return (places.logits.softmax(-1) - places.law).abs().sum(-1)


def sampled_variation(places: Places) -> Tensor:
    """TVD++ (Goel et al. 2024): the gradient of TV from a token drawn of q, its reward normed.

    The reward is 1 where p > q. Summed over all tokens its mean drops out; what is left of the
    norming is the size of the step.
    """
    log_q = places.logits.log_softmax(-1)
    q = log_q.detach().exp()
    drawn = torch.multinomial(q, 1)
    reward = (places.law.gather(-1, drawn) > q.gather(-1, drawn)).to(log_q)
    spread = reward.std(correction=0).clamp_min(FLOOR)
    return -((reward - reward.mean()) / spread * log_q.gather(-1, drawn))[:, 0]


def log_acceptance(places: Places) -> Tensor:
    """`−log Σ min(p, q)`: its gradient does not vanish where the laws hardly meet."""
    return -acceptance(places).clamp_min(FLOOR).log()


def likelihood(places: Places) -> Tensor:
    """`−log q(x)` of the token that the target said; 0 where the head drafts no such token."""
    drafted = places.said >= 0
    said = places.said.clamp_min(0)[:, None]
    return -places.logits.log_softmax(-1).gather(-1, said)[:, 0] * drafted


def half_likelihood(places: Places, other: Objective) -> Tensor:
    """Half the likelihood's loss and half another one (FastDraft, Zafrir et al. 2024)."""
    return (likelihood(places) + other(places)) / 2


def variation(places: Places) -> Tensor:
    """`TV(p, q) = ½ Σ |p − q|`."""
    return total_l1(places) / 2


def list_mle(places: Places, top: int = 10) -> Tensor:
    """ListMLE (Xia et al. 2008): the negative log-likelihood of the target's order of its `top`.

    The Plackett-Luce law draws the tokens one after the other in proportion to `exp(logits)`, each
    from those that are left: `−Σ_i (s_i − log Σ_{j ≥ i} exp s_j)`.
    """
    order = places.law.topk(min(top, places.law.shape[-1]), dim=-1).indices
    scores = places.logits.gather(-1, order)
    left = scores.flip(-1).logcumsumexp(-1).flip(-1)
    return (left - scores).sum(-1)


def acceptance(places: Places) -> Tensor:
    """`Σ min(p, q)`: how often a token drawn from q stands."""
    return torch.minimum(places.logits.softmax(-1), places.law).sum(-1)


@torch.no_grad()
def learnable(places: Places, better: Places) -> Tensor:
    """The numbers of those places, a share `LEARNED`, at which a reference is ahead the most.

    It is ahead by `KL(p ‖ q) − KL(p ‖ q_ref)`: what it has learned, and what is learned here can
    learn, too (AdaSPEC, Hu et al. 2025, section 3).

    Args:
        better: the same places of the reference.
    """
    gain = cross_entropy(places) - cross_entropy(better)
    return gain.topk(math.ceil(LEARNED * len(gain))).indices


@torch.no_grad()
def drawn(places: Places) -> Tensor:
    """The numbers of as many places, drawn at random: those of a sceptic of `learnable`."""
    count = len(places.at)
    return torch.randperm(count, device=places.at.device)[: math.ceil(LEARNED * count)]


OBJECTIVES: dict[str, Objective] = {
    "kl": cross_entropy,
    "reverse-kl": reverse_divergence,
    "jsd-0.1": partial(skewed_divergence, share=0.1),
    "jsd-0.9": partial(skewed_divergence, share=0.9),
    "tv": total_l1,
    "tvd++": sampled_variation,
    "log-acceptance": log_acceptance,
    "vispec": vispec,
    "tokens": likelihood,
    "tokens-kl": partial(half_likelihood, other=cross_entropy),
    "tokens-tv": partial(half_likelihood, other=variation),
}
"""Losses on laws by name; "tokens" learns from the target's text alone (Kim & Rush 2016)."""


def objective_of(name: str) -> Objective:
    """The loss of that name; raises an `InputError` if there is none."""
    check_name("objective", name, OBJECTIVES)
    return OBJECTIVES[name]
