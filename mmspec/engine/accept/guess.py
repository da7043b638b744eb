"""A guess of the token that the target adds behind a draft, judged with the draft (PEARL).

Liu et al. 2025, "PEARL: Parallel Speculative Decoding with Adaptive Draft Length": the guess is
drawn while the target reads the draft, so the target does not read it. If all that is drafted
stands and the guess with it, the guess is the target's own token: a draw of the same law, which is
as often the guessed one as any draw can be. What was drafted behind the guess then still holds.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ..coins import RoundCoins
from ..draft import Draft, Scores, Verdict
from ..laws import Categorical, Law, OneHot
from ..protocols import AcceptanceRule
from .chain import chain_laws


def verify_guessed(
    rule: AcceptanceRule, draft: Draft, guess: Draft, scores: Scores, coins: RoundCoins
) -> Verdict:
    """The verdict on a chain whose last token of the target's own was guessed.

    Args:
        rule: judges chains as prefixes.
        draft: what the target has read.
        guess: a chain of one node, `lengths` 0 for rows without a guess.
        scores, coins: see `AcceptanceRule.verify`.

    Returns:
        A verdict on `draft` alone, of the same law as the rule's own. A guess that stood is its
        `last` token, see `Verdict.guessed`.

    Raises:
        ContractError: the draft or the guess is a tree, or has laws that are none of single tokens.
    """
    behind = draft.lengths  # [B]: the guess's place in the chain of both
    tokens = _behind(draft.tokens, guess.tokens, behind)
    law = _law(draft, guess, scores.probs.shape[-1], behind)
    both = Draft(tokens, behind + guess.lengths, law)
    # the law behind the guess is not asked for: where the guess stands nothing follows it
    laws = torch.cat([scores.probs, scores.probs[:, -1:]], dim=1)
    verdict = rule.verify(both, replace(scores, laws=laws), coins)
    stood = verdict.accepted > behind
    last = guess.tokens.where(stood[:, None], verdict.last)
    accepted = torch.minimum(verdict.accepted, behind)
    guessed = stood.long() - (guess.lengths * ~stood)
    return Verdict(accepted, verdict.emitted[:, :-1], last, accepted + 1, guessed=guessed)


def _law(draft: Draft, guess: Draft, vocab: int, behind: Tensor) -> Law:
    """The laws of both, one behind the other."""
    own, of_guess = chain_laws(draft, "guessing"), chain_laws(guess, "guessing")
    if own is None and of_guess is None:
        return OneHot()
    own = F.one_hot(draft.tokens, vocab) if own is None or not draft.nodes else own
    of_guess = F.one_hot(guess.tokens, vocab) if of_guess is None else of_guess
    dtype = torch.promote_types(own.dtype, of_guess.dtype)
    return Categorical(_behind(own.to(dtype), of_guess.to(dtype), behind))


def _behind(chain: Tensor, one: Tensor, place: Tensor) -> Tensor:
    """`chain [B, N, …]` with `one [B, 1, …]` at `place [B]`, `[B, N + 1, …]`."""
    index = place.view(-1, *[1] * (one.ndim - 1)).expand_as(one)
    return torch.cat([chain, one], dim=1).scatter_(1, index, one)
