"""The law that transformers' `generate` draws from, for whole drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.generation import logits_process as processes

from ...engine.draft import Context, Draft, Scores
from ...engine.warp import Warp
from ..guided import GuidedDecoder
from ..target import TokenTarget
from .prompted import refuse

# these look at the logits alone
LOGITS_ONLY = (
    processes.SuppressTokensLogitsProcessor,
    processes.InfNanRemoveLogitsProcessor,
    processes.TemperatureLogitsWarper,
    processes.TopHLogitsWarper,
    processes.TopKLogitsWarper,
    processes.TopPLogitsWarper,
    processes.MinPLogitsWarper,
    processes.TypicalLogitsWarper,
    processes.EpsilonLogitsWarper,
    processes.EtaLogitsWarper,
    processes.LogitNormalization,
)
REPETITION = processes.RepetitionPenaltyLogitsProcessor
GUIDANCE = processes.UnbatchedClassifierFreeGuidanceLogitsProcessor


class ProcessedLaw:
    """`generate`'s logits processors in their order, then softmax or the largest logit alone.

    Those that look at the logits alone are called as they are. Those that look at the text in front
    (repetition penalty, shortest lengths) are done here, for all nodes of a draft at once while
    `looking` at it. The laws that drafts are drawn from go without them: that changes what is
    drafted, and not what comes out. Guidance is left to `GuidedDecoder`; the log-softmax that it
    leaves out shifts all logits of a law alike.

    Args:
        processors: as `generate` lists them.
        greedy: whether the largest logit is taken.
        prompt: ids `[N, T]` in front of every sample's output.

    Raises:
        InputError: a processor is none that this knows.
    """

    def __init__(self, processors: Sequence[object], greedy: bool, prompt: Tensor) -> None:
        self.prompt = prompt
        self.looks = False  # whether the text in front matters
        self._place: Tensor | None = None  # [B, n], output tokens in front of every law
        self._seen: Tensor | None = None  # [B, n, V + 1], what stands in front of it
        self._ignored: Tensor | int | None = None  # first tokens of the prompt that don't count
        self._draw = Warp(temperature=0.0 if greedy else 1.0)
        self._steps = [self._step(p) for p in processors if type(p) is not GUIDANCE]
        if REPETITION in (kinds := {type(p) for p in processors}) and GUIDANCE in kinds:
            refuse("repetition_penalty under guidance")

    def _step(self, processor: Any) -> Callable[[Tensor], Tensor]:
        kind, width = type(processor), self.prompt.shape[1]
        if kind in LOGITS_ONLY:
            return lambda logits: processor(None, logits.flatten(0, -2)).view_as(logits)
        self.looks = True
        if kind is REPETITION:
            self._ignored = processor.prompt_ignore_length
            return partial(self._penalize, processor.penalty)
        if kind is processes.MinLengthLogitsProcessor:
            return partial(self._postpone, processor.min_length - width, processor.eos_token_id)
        if kind is not processes.MinNewTokensLengthLogitsProcessor:
            refuse(f"the logits processor {kind.__name__}")
        least = processor.min_new_tokens - (width - processor.prompt_length_to_skip)
        return partial(self._postpone, least, processor.eos_token_id)

    def __call__(self, logits: Tensor) -> Tensor:
        """Laws of `logits [B, n, V]`, in at least float32."""
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        for step in self._steps:
            logits = step(logits)
        return self._draw(logits)

    @contextmanager
    def looking(self, context: Context, draft: Draft, vocab_size: int) -> Iterator[None]:
        """Give laws behind the last token and behind every node of `draft` meanwhile."""
        if self.looks:
            self._place = context.lengths[:, None] + F.pad(draft.depths() + 1, (1, 0))
            self._seen = self._tokens_before(context, draft, vocab_size)
        try:
            yield
        finally:
            self._place = self._seen = None

    def _tokens_before(self, context: Context, draft: Draft, vocab_size: int) -> Tensor:
        """Mask of the ids in front of each law, `[B, n, V + 1]`; the last one is none."""
        place = torch.arange(self.prompt.shape[1], device=self.prompt.device)
        ignored: Tensor | int = 0 if self._ignored is None else self._ignored
        if isinstance(ignored, Tensor):
            ignored = context.of_samples(ignored.to(place.device))[:, None]
        prompt = context.of_samples(self.prompt).masked_fill(place < ignored, vocab_size)
        written = torch.arange(context.tokens.shape[1], device=place.device)
        written = written < context.lengths[:, None]
        text = torch.cat([prompt, context.tokens.where(written, vocab_size)], dim=1)
        seen = torch.zeros(len(text), vocab_size + 1, dtype=torch.bool, device=text.device)
        seen.scatter_(1, text.clamp_max(vocab_size), True)
        line = draft.tokens[:, None].where(draft.ancestors(), vocab_size)  # [B, N, N]
        nodes = seen[:, None].repeat(1, draft.nodes, 1).scatter_(2, line, True)
        return torch.cat([seen[:, None], nodes], dim=1)

    def _penalize(self, penalty: float, logits: Tensor) -> Tensor:
        """Keskar et al. 2019, with transformers' care for signs."""
        if self._seen is None:
            return logits
        less = torch.where(logits < 0, logits * penalty, logits / penalty)
        return torch.where(self._seen[..., :-1], less, logits)

    def _postpone(self, least: int, ends: Tensor, logits: Tensor) -> Tensor:
        """Forbid an end before `least` tokens."""
        if self._place is None:
            return logits
        ids = torch.arange(logits.shape[-1], device=logits.device)
        ending = torch.isin(ids, ends.to(ids.device))
        return logits.masked_fill((self._place < least)[..., None] & ending, -torch.inf)


class ProcessedTarget(TokenTarget):
    """A target whose laws may depend on the text in front, through `law`."""

    def __init__(self, model: GuidedDecoder, law: ProcessedLaw, vocab_size: int) -> None:
        super().__init__(model)
        self.law, self.vocab_size = law, vocab_size

    def score(self, context: Context, draft: Draft) -> Scores:
        with self.law.looking(context, draft, self.vocab_size):
            return super().score(context, draft)
