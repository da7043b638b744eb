"""A draft model with exits, of which each token takes the first that is sure (S2D).

Kavehzadeh et al. 2024, "S2D: Sorted Speculative Decoding For More Efficient Deployment of Nested
Large Language Models": one draft model serves several targets, with other thresholds for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.accept.chain import pick
from ..engine.coins import RoundCoins
from ..engine.draft import Context, Draft, Scores, Verdict
from ..errors import InputError
from ..models.token_model import unread
from ..models.transformers.exits import ExitModel
from .sound_laws import chain_of_laws


class LeftModel(Protocol):
    """Protocol of a network with exits, see `ExitModel`.

    Attributes:
        raw: logits `[B, n, V]` of the last call, before warpers.
    """

    raw: Tensor | None

    @property
    def exits(self) -> Sequence[int]:
        """Layers in front of each exit."""

    def start(self, rows: int) -> None:
        """Take in the condition."""

    def seat(self, context: Context, rows: list[int]) -> None:
        """Take in the conditions of the samples that begin in these rows."""

    def read(self, number: int, tokens: Tensor, start: list[int]) -> Tensor:
        """Laws `[B, n, V]` of an exit behind each of `tokens [B, n]`."""


class SortedDrafter:
    """Draws each token from the law of the first exit that is sure.

    An exit is sure if its largest probability, before warpers, is its threshold or more. That does
    not depend on the token which is drawn, and so the law of a token is that of its exit: the
    output is exact. A test of the drawn token's own probability would draw from another law than
    any exit's.

    The layers between two exits read a token when a token behind it needs them for the first time.
    To ask a batch if any row goes on takes a synchronization for each exit of each token.

    Args:
        model: the draft model.
        thresholds: by exit; the last one stands for those behind it. The last exit has none.

    Attributes:
        calls: of the layers in front of each exit, so far.

    Raises:
        InputError: there are more thresholds than exits.
    """

    def __init__(self, model: LeftModel, thresholds: Sequence[float]) -> None:
        inner = len(model.exits) - 1
        if len(thresholds) > max(1, inner):
            raise InputError(
                f"there are {len(thresholds)} values in exit_confidence, and {inner} exits in "
                "front of the last"
            )
        self.model = model
        self.thresholds = [*thresholds, *[thresholds[-1]] * inner][:inner]
        self.calls = [0] * len(model.exits)
        self._known: list[list[int]] = []  # by exit and row, see `catch_up`

    def start(self, context: Context) -> None:
        self.model.start(context.rows)
        self.calls = [0] * len(self.calls)
        self._known = [[-1] * context.rows for _ in self.calls]

    def seat(self, context: Context, rows: list[int]) -> None:
        self.model.seat(context, rows)
        for known in self._known:
            for row in rows:
                known[row] = -1

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        depth, device = max(budget), context.tokens.device
        lengths = torch.tensor(budget, device=device)
        text = F.pad(context.tokens, (0, depth))
        tokens, laws = [], []
        for n in range(depth):
            ends = [base + n for base in context.base]
            laws.append(self._law(text, ends, lengths > n))
            tokens.append(coins.draw(laws[-1], n))
            text = text.scatter(1, torch.tensor(ends, device=device)[:, None], tokens[-1][:, None])
        return chain_of_laws(context, tokens, laws, lengths)

    def _law(self, text: Tensor, ends: list[int], asked: Tensor) -> Tensor:
        """Laws `[B, V]` behind the first `ends[b]` tokens of `text`, for the rows that ask."""
        chosen: Tensor | None = None
        for number, known in enumerate(self._known):
            inputs, start = unread(text, ends, known)
            laws = self.model.read(number, inputs, start)
            self._known[number] = list(ends)
            self.calls[number] += 1
            last = torch.tensor(
                [end - 1 - s for end, s in zip(ends, start, strict=True)], device=text.device
            )
            law = pick(laws, last)
            chosen = law if chosen is None else torch.where(asked[:, None], law, chosen)
            if number == len(self.thresholds):
                break
            assert self.model.raw is not None
            sure = self.confidence(pick(self.model.raw, last), law)
            asked = asked & ~(sure >= self.thresholds[number])
            if not bool(asked.any()):
                break
        assert chosen is not None
        return chosen

    def confidence(self, logits: Tensor, law: Tensor) -> Tensor:
        """Confidence `[B]` of an exit with these logits and this law `[B, V]`."""
        return logits.softmax(-1).amax(-1)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        # the last emitted token is the target's own
        told = [zip(context.base, known, strict=True) for known in self._known]
        self._known = [[min(base - 1, k) for base, k in each] for each in told]


def sorted_exits(
    model: object, exits: Sequence[int] | None, thresholds: Sequence[float]
) -> SortedDrafter:
    """The drafter over a draft model's exits, see `ExitModel`."""
    return SortedDrafter(ExitModel(model, exits), thresholds)
