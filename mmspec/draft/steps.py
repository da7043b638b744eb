"""A smaller model drafts a step of text: up to where a sentence, a line or a paragraph ends."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.accept.chain import pick
from ..engine.coins import RoundCoins
from ..engine.draft import Context, Draft, Scores, Verdict
from ..engine.laws import Opaque
from ..models.token_model import TokenModel
from ..models.unfinished_steps import StepsEnd, UnfinishedSteps
from .sound_laws import faults, mended


class StepDrafter:
    """Drafts token by token, up to where a step is over: one that stands or falls as a whole.

    Rows go on by themselves. A row whose step is over is judged, while others still draft theirs;
    while the target writes in its place, its draft is proposed again and again, and others draft
    on, a token a round.

    Drafts have the `states` that their tokens were drawn from, for a router, if the model is
    watched. Its cache needs no rollback: the next draft starts writing at the first new position.

    Args:
        model: the draft model.
        ends: tells where steps end.
    """

    def __init__(self, model: TokenModel, ends: StepsEnd) -> None:
        self.model, self.ends = model, ends
        self._steps = UnfinishedSteps(model, ends, 0)
        self._good = torch.zeros(0, 0, dtype=torch.bool)
        self._states: Tensor | None = None

    def start(self, context: Context) -> None:
        self.model.start(context.rows)
        self._steps = UnfinishedSteps(self.model, self.ends, context.rows)
        self._good = torch.ones(context.rows, 0, dtype=torch.bool, device=context.tokens.device)
        self._states = None

    def seat(self, context: Context, rows: list[int]) -> None:
        self.model.seat(context, rows)
        for row in rows:
            self._steps.drop(row, -1)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        steps = self._steps
        # of rows that are over already the target is writing: the others go on a token at a time
        while going := [r for r, most in enumerate(budget) if most and not steps.over[r]]:
            laws, _ = steps.laws(context, going)
            for row, full in enumerate(getattr(self.model, "full", ())):
                steps.over[row] |= full and row in going and not steps.counts[row]
            going = [row for row in going if not steps.over[row]]
            laws, good = mended(laws)
            if going:
                self._note(good, going)
                steps.draw(laws, going, budget, coins)
            if any(steps.over):
                break
        return self._draft(budget)

    def _note(self, good: Tensor, going: list[int]) -> None:
        """Keep of each next token whether its law is one, and what it is drawn from."""
        counts, hidden = torch.tensor(self._steps.counts, device=good.device), self._hidden()
        rows = torch.tensor(going, device=good.device)
        room = max(0, int(max(self._steps.counts)) + 1 - self._good.shape[1])
        self._good = F.pad(self._good, (0, room), value=True)
        self._good[rows, counts[rows]] = good[rows]
        if hidden is None:
            return
        if self._states is None:
            self._states = hidden.new_zeros(len(hidden), 0, hidden.shape[-1])
        room = max(0, self._good.shape[1] - self._states.shape[1])
        self._states = F.pad(self._states, (0, 0, 0, room))
        # a row that came less far than others has read a little past its end
        last = torch.tensor(self._steps.known, device=good.device).clamp(0, hidden.shape[1] - 1)
        self._states[rows, counts[rows]] = pick(hidden, last)[rows]

    def _hidden(self) -> Tensor | None:
        """The last call's hidden states `[B, n, D]`; None: the model is not watched."""
        hidden: Tensor | None = getattr(self.model, "hidden", None)
        if hidden is None or not getattr(self.model, "watched", False):
            return None
        return hidden[: len(self._steps.counts)]  # rows without a condition stand behind the others

    def _draft(self, budget: list[int]) -> Draft:
        steps, device = self._steps, self._good.device
        pairs = zip(steps.counts, steps.over, budget, strict=True)
        lengths = [min(count, most) if over else 0 for count, over, most in pairs]
        width = max(lengths)
        draft = Draft(
            steps.tokens[:, :width].clone().to(device),
            torch.tensor(lengths, device=device),
            Opaque(),
            pending=[most > 0 and not over for most, over in zip(budget, steps.over, strict=True)],
        )
        draft.faulty = faults(self._good[:, :width], draft)
        if self._states is not None:
            draft.states = self._states[:, :width].clone()
        return draft

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        rows = zip(context.base, context.emitted, context.accepted, strict=True)
        for row, (base, count, kept) in enumerate(rows):
            if count:  # behind a draft that fell nothing of it is true
                self._steps.drop(row, base - 1 if kept else base - count)
