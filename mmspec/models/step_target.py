"""A language model as the target of steps: it writes those that fell, and reads no drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.coins import Coins, RoundCoins
from ..engine.draft import Context, Draft, Scores, Verdict
from ..engine.laws import Opaque, Rewards, TargetError
from .guided import GuidedDecoder
from .target import TokenTarget
from .token_model import laws_behind

StepScorer = Callable[[Context, Draft], Tensor]
"""Scores `[B]` of a draft's steps behind the committed tokens; NaN where there is none."""


@dataclass(frozen=True)
class WrittenSteps:
    """Steps of the target's own behind the committed tokens.

    Attributes:
        tokens: `[B, K]`.
        lengths: of each row; 0: none was asked for.
        read: committed tokens that were read first, per row; rows that run along catch up, too.
    """

    tokens: Tensor
    lengths: list[int]
    read: list[int]


class StepTarget(TokenTarget):
    """Writes the steps whose drafts fall, token by token, from a cache of its own.

    Nobody asks it what it thinks of a draft, so that a step which stands costs it nothing until it
    writes again: then it reads all that it has missed, in the call of the new step's first token.

    Args:
        model: the network under guidance and warpers.
        ends: of the step so far `[B, n]`, rows `[B]` in which the last token ends it.
        most: tokens of a step.
        scorer: scores drafted steps; None: nobody does.
    """

    def __init__(
        self,
        model: GuidedDecoder,
        ends: Callable[[Tensor], Tensor],
        most: int,
        scorer: StepScorer | None = None,
    ) -> None:
        super().__init__(model)
        self.ends, self.most, self.scorer = ends, most, scorer
        self._known: list[int] = []  # per row, positions before this one are in the cache

    def start(self, rows: int) -> None:
        super().start(rows)
        self._known = [-1] * rows

    def seat(self, context: Context, rows: list[int]) -> None:
        super().seat(context, rows)
        for row in rows:
            self._known[row] = -1

    def score(self, context: Context, draft: Draft) -> Scores:
        """Scores of the drafted steps `[B, U, 1]`, see `routing`; none if nobody scores."""
        units, one = min(1, draft.nodes), draft.lengths.new_zeros(context.rows, 0)
        if units and self.scorer is not None:
            one = self._judged(self.scorer, context, draft)[:, None].double().to(one.device)
        return Scores(Rewards(one.double()[:, None].expand(-1, units, -1)), calls=0)

    def _judged(self, scorer: StepScorer, context: Context, draft: Draft) -> Tensor:
        """What the scores hold of the drafts `[B]`."""
        return scorer(context, draft)

    def sample_next(
        self, context: Context, draft: Draft, verdict: Verdict, coins: RoundCoins
    ) -> Verdict:
        """Steps of the target's own in place of those that fell.

        Raises:
            TargetError: its laws are no numbers.
        """
        kept = verdict.accepted.tolist()
        writes = [not (k or over) for k, over in zip(kept, context.finished, strict=True)]
        own, drafted = self._own(context, writes, coins), verdict.emitted
        assert verdict.keep is not None
        width, device = max(drafted.shape[1], own.tokens.shape[1]), drafted.device
        chosen, lengths = (torch.tensor(x, device=device) for x in (writes, own.lengths))
        emitted = _wide(own.tokens, width).where(chosen[:, None], _wide(drafted, width))
        counts = torch.where(chosen, lengths, verdict.counts)
        # of what it wrote the last token is still to be read
        places = zip(self._known, context.base, own.lengths, writes, strict=True)
        self._known = [base + n - 1 if w else known for known, base, n, w in places]
        return replace(
            verdict,
            emitted=emitted,
            last=emitted.gather(1, counts[:, None] - 1),
            counts=counts,
            keep=_wide(verdict.keep, width),
            calls=own.lengths,
            target_tokens=[r + max(0, n - 1) for r, n in zip(own.read, own.lengths, strict=True)],
        )

    def _own(self, context: Context, writes: Sequence[bool], coins: RoundCoins) -> WrittenSteps:
        """Steps of the target's own, of rows that are to have one at least."""
        if not any(writes):
            none = [0] * context.rows
            return WrittenSteps(context.tokens[:, :0], none, none)
        return self.write(context, writes, coins)

    def write(self, context: Context, writes: Sequence[bool], coins: RoundCoins) -> WrittenSteps:
        """Draw steps behind the committed tokens of the rows that `writes` names.

        Other rows run along, and nothing is kept of what they are given.
        """
        self.model.leave(context.finished)
        missed = zip(self._known, context.base, context.finished, strict=True)
        read = [0 if over else base - known for known, base, over in missed]
        law = laws_behind(self.model, context, self._known)
        self._known = list(context.base)
        most = [min(self.most, room) for room in context.room()]
        lengths, going, tokens = [0] * context.rows, list(writes), list[Tensor]()
        while any(going):
            n = len(tokens)
            _check_laws(law, going, context, n)
            tokens.append(coins.draw(law, n))
            over = self.ends(torch.stack(tokens, dim=1)).tolist()
            for row in (row for row, goes in enumerate(going) if goes):
                lengths[row] = n + 1
                going[row] = not over[row] and n + 1 < most[row]
            if any(going):
                start = [base + n for base in context.base]
                law = self.model.extend(tokens[-1][:, None], start)[:, -1]
        return WrittenSteps(torch.stack(tokens, dim=1), lengths, read)

    def commit(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        """Nothing is left to do: what was written is in the cache."""


class OracleStepTarget(StepTarget):
    """Scores a draft by the target's advantage: the score of its own step less the draft's.

    Each draft costs the target a step, whether it stands or not, and all of them are counted: it is
    what routing could win at most, not a way to be fast. A step that it wrote so is the one that
    replaces a draft which falls.

    Args:
        model, ends, most, scorer: see `StepTarget`.
        coins: of the generation; the step is drawn as it would be once the draft has fallen.
    """

    def __init__(
        self,
        model: GuidedDecoder,
        ends: Callable[[Tensor], Tensor],
        most: int,
        scorer: StepScorer,
        coins: Coins,
    ) -> None:
        super().__init__(model, ends, most, scorer)
        self.coins = coins
        self._foreseen: WrittenSteps | None = None

    def score(self, context: Context, draft: Draft) -> Scores:
        """Advantages of the target's steps `[B, U, 1]`."""
        self._foreseen = None
        return super().score(context, draft)

    def _judged(self, scorer: StepScorer, context: Context, draft: Draft) -> Tensor:
        _, coins = self.coins.round(context.round)
        own = self.write(context, [not over for over in context.finished], coins)
        self._foreseen = own
        lengths = torch.tensor(own.lengths, device=draft.lengths.device)
        return scorer(context, Draft(own.tokens, lengths, Opaque())) - scorer(context, draft)

    def _own(self, context: Context, writes: Sequence[bool], coins: RoundCoins) -> WrittenSteps:
        return self._foreseen or super()._own(context, writes, coins)


def _wide(x: Tensor, width: int) -> Tensor:
    """Rows of `[B, n]` filled up to `[B, width]`."""
    return F.pad(x, (0, width - x.shape[1]))


def _check_laws(law: Tensor, going: Sequence[bool], context: Context, written: int) -> None:
    """Raise a `TargetError` if the law `[B, V]` of a row that goes on is no numbers."""
    for row, wrong in enumerate(law[:, 0].isnan().tolist()):
        if wrong and going[row]:
            sample = row if context.samples is None else context.samples[row]
            raise TargetError(
                f"the target's laws behind token {context.base[row] + written} of row {sample} are "
                "no numbers"
            )
