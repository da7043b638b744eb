"""Grouped speculative decoding: clusters of like tokens are judged in place of single ones.

So et al. 2025 (GSD, arXiv 2508.07747).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...errors import InputError
from ..coins import RoundCoins
from ..draft import Draft, Scores, Verdict
from ..laws import Contract
from .chain import accepted_prefix, chain_laws, prefix_verdict, recovered_verdict, token_probs


class GroupedRule:
    """Accept x with probability min(1, Σ_C p / Σ_C q) over its cluster C; else draw from [p − q]+.

    C(x) is x and, of the (G − 1) // 2 tokens that p ranks above it and the G // 2 below (ties in
    the order of ids), those that the target can emit at all and that are near x: |p(y) − p(x)| is
    below one bound, ‖c_y − c_x‖ below another. So a token of probability 0 neither stands nor
    helps another to, and where the target leaves no choice (greedy decoding, forced grid tokens)
    nothing is relaxed.

    G is the knob; G = 1 is the token rule. With f the acceptance above, the total variation of one
    step is at most Σ q(x) |f(x) − min(1, p(x) / q(x))|, which depends on the laws and has no bound
    of its own. Not every token gains: one that the target likes better than the draft does stands
    less often if the draft likes the rest of its cluster better.

    Args:
        codebook: a vector for every token id `[V, C]`, needed for a distance bound only. Rows of
            NaN stand for tokens that are no codes: they are pooled with none.
        group_size: G, 1 or more (released: 14; the paper goes from 3 to 50).
        probability_bound: pool only tokens whose probability differs by less (released: 0.15);
            None: any.
        distance_bound: pool only tokens whose codes are less far apart in L2 distance, which is
            from 0 to 2 if the codebook is normalized (released: 0.5 for the square, over the
            target's input embeddings, of another scale); None: any.

    Raises:
        InputError: there is a distance bound and no codebook.
    """

    contract: Contract = "lossy"

    def __init__(
        self,
        codebook: Tensor | None = None,
        group_size: int = 14,
        probability_bound: float | None = 0.15,
        distance_bound: float | None = None,
    ) -> None:
        if distance_bound is not None and codebook is None:
            raise InputError("distance_bound needs a codebook: give one, or leave the bound out")
        self.codebook, self.group_size = codebook, group_size
        self.probability_bound, self.distance_bound = probability_bound, distance_bound

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """Judge chains with `OneHot` or `Categorical` laws.

        Raises:
            InputError: the codebook has not one row for every token of the vocabulary.
        """
        if not draft.nodes:
            return prefix_verdict(draft, draft.lengths, coins.draw(scores.probs[:, 0]))
        q, p = chain_laws(draft, "grouped"), scores.at_nodes(draft)
        tokens, inside = self._clusters(p, draft.tokens)  # [B, N, G]
        prob = torch.where(inside, p.gather(-1, tokens), 0.0).sum(-1)
        if q is not None:  # a chosen node has all of q within its own cluster
            prob = prob / torch.where(inside, q.gather(-1, tokens), 0.0).sum(-1)
        prob = torch.where(token_probs(p, draft.tokens) > 0, prob, 0.0)
        accepted = accepted_prefix(coins.accept(prob, draft.lengths), draft)
        return recovered_verdict(draft, scores.probs, q, accepted, coins)

    def _clusters(self, p: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
        """The window of ranks around each drafted token, as ids `[B, N, G]`, and which of them are
        in its cluster."""
        vocab, x = p.shape[-1], drafted[..., None]
        order = ranking(p)
        rank = (order == x).int().argmax(-1, keepdim=True)
        step = torch.arange(self.group_size, device=p.device) - (self.group_size - 1) // 2
        place = rank + step
        tokens = order.gather(-1, place.clamp(0, vocab - 1))
        theirs = p.gather(-1, tokens)
        inside = (place >= 0) & (place < vocab) & (theirs > 0)
        if self.probability_bound is not None:
            inside &= (theirs - p.gather(-1, x)).abs() < self.probability_bound
        if self.distance_bound is not None:
            inside &= self._distances(tokens, x, vocab) < self.distance_bound
        return tokens, inside | (step == 0)

    def _distances(self, tokens: Tensor, x: Tensor, vocab: int) -> Tensor:
        """‖c_y − c_x‖ of the window's tokens y `[B, N, G]` and their x `[B, N, 1]`."""
        assert self.codebook is not None
        if len(self.codebook) != vocab:
            rows = len(self.codebook)
            raise InputError(f"the codebook has {rows} rows for {vocab} tokens: give one a token")
        self.codebook = self.codebook.to(tokens.device)  # moved once
        return (self.codebook[tokens] - self.codebook[x]).norm(dim=-1)


def ranking(p: Tensor) -> Tensor:
    """Ids by falling probability, ties in the order of ids: `[..., V]` of `p [..., V]`."""
    if p.device.type != "cpu" or p.dtype != torch.float32:
        return p.sort(dim=-1, descending=True, stable=True).indices
    # much quicker: sort numbers that hold their own id. The bits of floats from 0 on are ordered as
    # the floats are, so minus those of p in the upper half, and the id in the lower
    ids = torch.arange(p.shape[-1])
    keys = (-p.view(torch.int32).long() << 32) + ids
    return torch.from_numpy(np.sort(keys.numpy(), axis=-1)) & 0xFFFFFFFF
