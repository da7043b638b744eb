"""Tokens of a draft model that were left in descriptions, and what became of the statements.

A token is important if its statement is false with it, and true as the target itself ends it. The
shapes world tells, so that nobody has to annotate texts (Judge Decoding), and one text tells of
many tokens, where AutoJudge lets the target finish a whole answer for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...engine.accept.token import TokenRule
from ...engine.coins import RoundCoins
from ...engine.draft import Draft, Scores, Verdict
from ...engine.laws import Contract
from ...models.transformers.prompted import PromptedDecoder
from ...worlds.shapes.exchanges import Picture, score_long

ENDS = ".;!?"  # of a statement


@dataclass
class LeftTokens:
    """Drafted tokens that the token rule rejected, and that were left nonetheless.

    Attributes:
        rows, places: the sample of each, and how many tokens of the output stand in front `[M]`.
        states: the target's last hidden states once it has read them `[M, D]`.
        probs: the target's probabilities of them at temperature 1 `[M]`.
    """

    rows: Tensor
    places: Tensor
    states: Tensor
    probs: Tensor


@dataclass
class LenientRule:
    """The token rule, which by chance leaves the first token that falls where it is.

    Args:
        decoder: of the target, for the laws of its states.
        share: probability that a fallen token is left.
        ends: tokens that are never left: a text that ends says nothing false.
        generator: of that chance.
    """

    decoder: PromptedDecoder
    share: float
    ends: Sequence[int]
    generator: torch.Generator
    contract: Contract = "lossy"
    noted: list[LeftTokens] = field(default_factory=list)
    _written: Tensor | None = None

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """Judge chains."""
        verdict = TokenRule().verify(draft, scores, coins)
        written = torch.zeros_like(draft.lengths) if self._written is None else self._written
        self._written = written + verdict.counts
        if not draft.nodes:
            return verdict
        at = verdict.accepted.clamp_max(draft.nodes - 1)[:, None]
        token = draft.tokens.gather(1, at)
        chance = torch.rand(len(at), generator=self.generator) < self.share
        left = (verdict.accepted < draft.lengths) & chance.to(at.device)
        for end in self.ends:
            left &= token[:, 0] != end
        last = torch.where(left[:, None], token, verdict.last)
        verdict.emitted.scatter_(1, verdict.accepted[:, None], last)
        verdict.last = last
        rows, (place,) = left.nonzero()[:, 0], at.T
        assert scores.hidden is not None
        before, states = (scores.hidden[rows, place[rows] + n] for n in (0, 1))
        laws = self.decoder.logits(before).float().softmax(-1)
        probs = laws.gather(1, token[rows])[:, 0]
        self.noted.append(LeftTokens(rows, (written + place)[rows], states, probs))
        return verdict

    def left(self) -> LeftTokens:
        """The tokens that were left, in the order of rounds; some may lie behind a text's end."""
        names = ("rows", "places", "states", "probs")
        return LeftTokens(*(torch.cat([getattr(n, name) for n in self.noted]) for name in names))


def in_false(
    tokenizer: Any, ids: Sequence[int], places: Sequence[int], picture: Picture
) -> dict[int, bool]:
    """Tell of each of the `places` for which it can be told whether its statement is false.

    Places count up to the first one that is to blame: what follows builds on it. Where a false
    statement holds several nobody knows which it is. One that holds none is the target's own error.
    """
    told: dict[int, bool] = {}
    start, wrong = 0, 0
    for end in range(len(ids)):
        if not ends_statement(tokenizer, ids[end]):
            continue
        before, wrong = wrong, _wrong(tokenizer, ids[: end + 1], picture)
        inside = [place for place in places if start <= place <= end]
        if wrong <= before or len(inside) == 1:
            told |= dict.fromkeys(inside, wrong > before)
        if wrong > before and inside:
            break
        start = end + 1
    return told


def ends_false(tokenizer: Any, ids: Sequence[int], picture: Picture) -> bool:
    """True if the last statement of a text is false."""
    inner = [n for n, token in enumerate(ids[:-1]) if ends_statement(tokenizer, token)]
    before = _wrong(tokenizer, ids[: inner[-1] + 1], picture) if inner else 0
    return _wrong(tokenizer, ids, picture) > before


def ends_statement(tokenizer: Any, token: int) -> bool:
    """True for tokens that end a statement."""
    return bool({*tokenizer.decode([token])} & {*ENDS})


def _wrong(tokenizer: Any, ids: Sequence[int], picture: Picture) -> int:
    """Claims of a text that are false."""
    score = score_long(tokenizer.decode(ids, skip_special_tokens=True), picture)
    return score.claims - score.true
