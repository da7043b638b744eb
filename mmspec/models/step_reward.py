"""Rewards of steps of text, by whatever reads text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..engine.draft import Context, Draft
from ..errors import reason

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """A step of text that is to be scored.

    Attributes:
        sample: number of the prompt in its call.
        prompt: its text.
        before: the answer in front of the step.
        text: the step.
    """

    sample: int
    prompt: str
    before: str
    text: str


StepReward = Callable[[Sequence[Step]], Sequence[float]]
"""Scores steps, a number each, such as a process reward model does; more is better."""


class StepJudge:
    """Scores of drafted steps in the light of their prompts.

    A reward that raises, or is no number, is NaN: whoever routes by it has the target write. The
    first time it is said.

    Args:
        reward: of steps.
        tokenizer: makes text of tokens.
        prompts: one a sample.
    """

    def __init__(self, reward: StepReward, tokenizer: Any, prompts: Sequence[str]) -> None:
        self.reward, self.tokenizer, self.prompts = reward, tokenizer, prompts
        self._told = False

    def __call__(self, context: Context, draft: Draft) -> Tensor:
        """Scores `[B]` of a chain behind the committed tokens, float64; NaN where there is none."""
        scores = torch.full((context.rows,), torch.nan, dtype=torch.float64)
        lengths = draft.lengths.tolist()
        rows = [n for n, over in enumerate(context.finished) if lengths[n] and not over]
        steps = [
            self._step(context, row, draft.tokens[row, : lengths[row]].tolist()) for row in rows
        ]
        if not rows:
            return scores
        try:
            scores[rows] = torch.tensor([*self.reward(steps)], dtype=torch.float64)
        except Exception as error:  # a reward raises what its libraries raise
            if not self._told:
                logger.warning("the reward failed (%s); the target writes", reason(error))
            self._told = True
        return scores

    def _step(self, context: Context, row: int, tokens: list[int]) -> Step:
        before = context.tokens[row, : context.base[row]].tolist()
        sample = row if context.samples is None else context.samples[row]
        # a token's text may depend on what is in front of it
        said, whole = (
            self.tokenizer.decode(ids, skip_special_tokens=True)
            for ids in (before, [*before, *tokens])
        )
        return Step(sample, self.prompts[sample], said, whole[len(said) :])
