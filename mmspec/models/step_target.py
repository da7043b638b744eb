"""A language model as the target of steps: it writes those that fell, and reads no drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.coins import Coins, RoundCoins
from ..engine.draft import Context, Draft, Scores, Verdict
from ..engine.laws import Opaque, Rewards, TargetError
from .guided import GuidedDecoder
from .target import TokenTarget
from .unfinished_steps import StepsEnd, UnfinishedSteps

StepScorer = Callable[[Context, Draft], Tensor]
"""Scores `[B]` of a draft's steps behind the committed tokens; NaN where there is none."""


class StepTarget(TokenTarget):
    """Writes the steps whose drafts fall, token by token, from a cache of its own.

    Nobody asks it what it thinks of a draft, so that a step which stands costs it nothing until it
    writes again: then it reads all that it has missed, in the call of the new step's first token.

    Rows go on by themselves. While some draft, those that it writes get a token a round, and emit
    nothing until their step is over. Where none drafts it writes until one of them is.

    Args:
        model: the network under guidance and warpers.
        ends: tells where steps end.
        most: tokens of a step.
        scorer: scores drafted steps; None: nobody does.
    """

    foresees = False  # it writes in front of the verdict

    def __init__(
        self,
        model: GuidedDecoder,
        ends: StepsEnd,
        most: int,
        scorer: StepScorer | None = None,
    ) -> None:
        super().__init__(model)
        self.ends, self.most, self.scorer = ends, most, scorer
        self._steps = UnfinishedSteps(model, ends, 0)
        self._writes: list[bool] = []  # rows that it writes in
        self._cost: tuple[list[int], list[int]] = [], []  # of this round: calls and tokens, by row

    def start(self, rows: int) -> None:
        super().start(rows)
        self._steps = UnfinishedSteps(self.model, self.ends, rows)
        self._writes = [False] * rows

    def seat(self, context: Context, rows: list[int]) -> None:
        super().seat(context, rows)
        for row in rows:
            self._steps.drop(row, -1)
            self._writes[row] = False

    def score(self, context: Context, draft: Draft) -> Scores:
        """Scores of the drafted steps `[B, U, 1]`, see `routing`; none if nobody scores."""
        units, one = min(1, draft.nodes), draft.lengths.new_zeros(context.rows, 0)
        if units and self.scorer is not None:
            fresh = [not writes for writes in self._writes]
            one = self.scorer(context, _of(draft, fresh))[:, None].double().to(one.device)
        return Scores(Rewards(one.double()[:, None].expand(-1, units, -1)), calls=0)

    def sample_next(
        self, context: Context, draft: Draft, verdict: Verdict, coins: RoundCoins
    ) -> Verdict:
        """Steps of the target's own in place of those that fell, where they are over.

        Raises:
            TargetError: its laws are no numbers.
        """
        kept = verdict.accepted.tolist()
        self._write(context, draft, kept, coins)
        steps, drafted = self._steps, verdict.emitted
        stands, own = [False] * context.rows, [False] * context.rows
        for row, finished in enumerate(context.finished):
            written = self._writes[row] and steps.over[row]
            if not finished and (written if self.foresees else not self._writes[row]):
                stands[row] = bool(kept[row])  # judged in this round
            own[row] = written and not (finished or stands[row])
        width, device = max(drafted.shape[1], steps.tokens.shape[1], 1), drafted.device
        chosen, counts = (torch.tensor(x, device=device) for x in (own, steps.counts))
        emitted = _wide(steps.tokens.to(device), width).where(
            chosen[:, None], _wide(drafted, width)
        )
        keep = torch.tensor(stands, device=device)
        counts = counts.where(chosen, verdict.counts * keep)
        last = emitted.gather(1, (counts - 1).clamp_min(0)[:, None])
        for row in (row for row, ready in enumerate(stands) if ready or own[row]):
            # of what it wrote the last token is still to be read; of what it wrote in vain nothing
            steps.drop(row, context.base[row] + (steps.counts[row] - 1 if own[row] else 0))
            self._writes[row] = False
        assert verdict.keep is not None
        calls, read = self._cost
        return replace(
            verdict,
            accepted=verdict.accepted * keep,
            emitted=emitted,
            last=last.where(counts[:, None] > 0, context.last),
            counts=counts,
            keep=_wide(verdict.keep & keep[:, None], width),
            calls=calls,
            target_tokens=read,
        )

    def _write(
        self, context: Context, draft: Draft, kept: Sequence[int], coins: RoundCoins
    ) -> None:
        """Write where a draft is neither `kept` nor under way; see the class for how far."""
        rows = range(context.rows)
        pending = draft.pending or [False] * context.rows
        for row in rows:
            self._writes[row] |= not (context.finished[row] or kept[row] or pending[row])
            self._writes[row] &= not context.finished[row]
        self._cost = [0] * context.rows, [0] * context.rows
        steps, room = self._steps, context.room()
        alone = all(self._writes[row] or context.finished[row] for row in rows)
        most = [min(self.most, left) for left in room]
        while going := [row for row in rows if self._writes[row] and not steps.over[row]]:
            self.model.leave(context.finished)
            law, read = steps.laws(context, going)
            _check_laws(law, going, context, steps.counts)
            for row in going:
                self._cost[0][row] += 1
                self._cost[1][row] += read[row]
            steps.draw(law, going, most, coins)
            if not alone or any(steps.over):
                break

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

    foresees = True

    def __init__(
        self,
        model: GuidedDecoder,
        ends: StepsEnd,
        most: int,
        scorer: StepScorer,
        coins: Coins,
    ) -> None:
        super().__init__(model, ends, most)
        self.coins, self.judge = coins, scorer

    def score(self, context: Context, draft: Draft) -> Scores:
        """Advantages of the target's steps `[B, U, 1]`; NaN where its own is not over yet."""
        _, coins = self.coins.round(context.round)
        super()._write(context, draft, [0] * context.rows, coins)
        units, steps = min(1, draft.nodes), self._steps
        drafted = draft.lengths.tolist()
        pairs = zip(self._writes, steps.over, drafted, strict=True)
        ready = [writes and over and count > 0 for writes, over, count in pairs]
        scores = torch.full((context.rows,), torch.nan, dtype=torch.float64)
        if any(ready):
            lengths = torch.tensor(steps.counts, device=draft.lengths.device)
            own = _of(Draft(steps.tokens.to(lengths.device), lengths, Opaque()), ready)
            both = (self.judge(context, one) for one in (own, _of(draft, ready)))
            better, other = both
            scores = better.double() - other.double()
        one = scores[:, None, None].to(draft.lengths.device)
        return Scores(Rewards(one.expand(-1, units, -1)), calls=0)

    def _write(
        self, context: Context, draft: Draft, kept: Sequence[int], coins: RoundCoins
    ) -> None:
        """Nothing is left to do: it wrote to score."""


def _of(draft: Draft, rows: Sequence[bool]) -> Draft:
    """The draft of some rows alone."""
    chosen = torch.tensor(rows, device=draft.lengths.device)
    return replace(draft, lengths=draft.lengths * chosen)


def _wide(x: Tensor, width: int) -> Tensor:
    """Rows of `[B, n]` filled up to `[B, width]`."""
    return F.pad(x[:, :width], (0, max(0, width - x.shape[1])))


def _check_laws(law: Tensor, going: Sequence[int], context: Context, counts: Sequence[int]) -> None:
    """Raise a `TargetError` if the law `[B, V]` of a row that goes on is no numbers."""
    wrong = law[:, 0].isnan().tolist()
    for row in going:
        if wrong[row]:
            sample = row if context.samples is None else context.samples[row]
            raise TargetError(
                f"the target's laws behind token {context.base[row] + counts[row]} of row {sample} "
                "are no numbers"
            )
