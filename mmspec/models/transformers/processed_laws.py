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

from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.warp import Warp
from ...errors import InputError
from ..guided import GuidedDecoder
from ..target import TokenTarget
from .emitted_scores import EmittedScores
from .read_texts import ReadTexts
from .text_processors import TextProcessor

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
COUNTING = (  # these ask which tokens are in front, or how many
    REPETITION,
    processes.MinLengthLogitsProcessor,
    processes.MinNewTokensLengthLogitsProcessor,
)
GUIDANCE = processes.UnbatchedClassifierFreeGuidanceLogitsProcessor


class ProcessedLaw:
    """`generate`'s logits processors in their order, then softmax or the largest logit alone.

    Those that look at the logits alone are called as they are. Those that look at the text in front
    are asked for all nodes of a draft while `looking` at it: repetition penalty and shortest
    lengths at once, all others as `TextProcessor`. The laws that drafts are drawn from go without
    them: that changes what is drafted, and not what comes out. Guidance is `GuidedDecoder`'s.

    Args:
        processors: as `generate` lists them.
        greedy: whether the largest logit is taken.
        prompt: ids `[N, T]` in front of every sample's output.
        ends: ids of end tokens: nothing looks at texts behind them.

    Attributes:
        looks: whether the text in front matters.
        keeps: whether the logits of the last laws are kept, processed.
        kept: those `[B, n, V]`.
        dead: of the last laws those whose processors left no token `[B, n]`, and which are the
            network's own in place of that; None: nothing was asked about texts.
        greedy: its laws are point masses.
    """

    keeps = False
    kept: Tensor | None = None
    dead: Tensor | None = None

    def __init__(
        self,
        processors: Sequence[object],
        greedy: bool,
        prompt: Tensor,
        ends: Sequence[int] = (),
    ) -> None:
        self.prompt, self.ends = prompt, frozenset(ends)
        self.looks = self._counts = False  # the latter: whether what is in front is counted
        self._asks = False  # whether a user's own is asked, which may allow nothing
        self._texts: tuple[ReadTexts, Draft] | None = None
        self._place: Tensor | None = None  # [B, n], output tokens in front of every law
        self._ignored: list[Tensor | int | None] = []  # first tokens, by what penalizes others
        self._seen: list[Tensor] = []  # for each of these `[B, n, V + 1]`: what stands in front
        self.greedy = greedy
        self._draw = Warp(temperature=0.0 if greedy else 1.0)
        others = [p for p in processors if type(p) is not GUIDANCE]
        # each with whether it reads the text
        self._steps = [(self._step(p), type(p) not in LOGITS_ONLY) for p in others]

    def _step(self, processor: Any) -> Callable[[Tensor], Tensor]:
        kind, width = type(processor), self.prompt.shape[1]
        if kind in LOGITS_ONLY:
            least = torch.finfo(torch.float32).min  # transformers' logits are in float32
            bound = kind is processes.InfNanRemoveLogitsProcessor

            def alone(logits: Tensor) -> Tensor:
                out: Tensor = processor(None, logits.flatten(0, -2)).view_as(logits)
                return out.clamp(least, -least) if bound else out

            return alone
        self.looks = True
        if kind not in COUNTING:
            self._asks = True
            return partial(self._asked, TextProcessor(processor))
        self._counts = True
        if kind is REPETITION:
            self._ignored.append(processor.prompt_ignore_length)
            return partial(self._penalize, processor.penalty, len(self._ignored) - 1)
        if kind is processes.MinLengthLogitsProcessor:
            return partial(self._postpone, processor.min_length - width, processor.eos_token_id)
        least = processor.min_new_tokens - (width - processor.prompt_length_to_skip)
        return partial(self._postpone, least, processor.eos_token_id)

    def __call__(self, logits: Tensor) -> Tensor:
        """Laws of `logits [B, n, V]`, in at least float32."""
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        own, self.dead = logits, None
        for step, reads in self._steps:
            logits = step(logits)
            if reads:  # warpers behind it want laws
                logits = self._alive(logits, own)
        logits = self._alive(logits, own)
        if self.keeps:
            self.kept = logits
        return self._draw(logits)

    def _alive(self, logits: Tensor, own: Tensor) -> Tensor:
        """The logits, `own` where a text was asked about behind which no token is left."""
        if not self._asks or self._texts is None:
            return logits
        dead = _none_left(logits) & ~_none_left(own)
        self.dead = dead if self.dead is None else self.dead | dead
        return torch.where(dead[..., None], own, logits)

    @contextmanager
    def looking(self, context: Context, draft: Draft, vocab_size: int) -> Iterator[None]:
        """Give laws behind the last token and behind every node of `draft` meanwhile."""
        if self.looks:
            self._texts = ReadTexts(self.prompt, context, self.ends), draft
        if self._counts:
            self._place = context.lengths[:, None] + F.pad(draft.depths() + 1, (1, 0))
            told = context, draft, vocab_size
            self._seen = [self._tokens_before(*told, ignored) for ignored in self._ignored]
        try:
            yield
        finally:
            self._place = self._texts = None
            self._seen = []

    def _tokens_before(
        self, context: Context, draft: Draft, vocab_size: int, ignored: Tensor | int | None
    ) -> Tensor:
        """Mask of the ids in front of each law, `[B, n, V + 1]`; the last one is none.

        The first `ignored` tokens of a row, its prompt's included, are left out.
        """
        count, device = self.prompt.shape[1], self.prompt.device
        written = torch.arange(context.tokens.shape[1], device=device) < context.lengths[:, None]
        output = context.tokens.where(written, vocab_size)
        text, nodes = torch.cat([context.of_samples(self.prompt), output], dim=1), draft.tokens
        if ignored is not None:
            if isinstance(ignored, Tensor):
                ignored = context.of_samples(ignored.to(device))[:, None]
            places = torch.arange(text.shape[1], device=device).expand_as(text)
            text = text.masked_fill(places < ignored, vocab_size)
            places = count + context.lengths[:, None] + draft.depths()
            nodes = nodes.masked_fill(places < ignored, vocab_size)
        seen = torch.zeros(len(text), vocab_size + 1, dtype=torch.bool, device=device)
        seen.scatter_(1, text.clamp_max(vocab_size), True)
        line = nodes[:, None].where(draft.ancestors(), vocab_size)  # [B, N, N]
        behind = seen[:, None].repeat(1, draft.nodes, 1).scatter_(2, line, True)
        return torch.cat([seen[:, None], behind], dim=1)

    def _asked(self, processor: TextProcessor, logits: Tensor) -> Tensor:
        return logits if self._texts is None else processor(logits, *self._texts)

    def _penalize(self, penalty: float, number: int, logits: Tensor) -> Tensor:
        """Keskar et al. 2019, with transformers' care for signs."""
        if not self._seen:
            return logits
        less = torch.where(logits < 0, logits * penalty, logits / penalty)
        return torch.where(self._seen[number][..., :-1], less, logits)

    def _postpone(self, least: int, ends: Tensor, logits: Tensor) -> Tensor:
        """Forbid an end before `least` tokens."""
        if self._place is None:
            return logits
        ids = torch.arange(logits.shape[-1], device=logits.device)
        ending = torch.isin(ids, ends.to(ids.device))
        return logits.masked_fill((self._place < least)[..., None] & ending, -torch.inf)


def _none_left(logits: Tensor) -> Tensor:
    """True for `logits [..., V]` that leave no token, or are no numbers."""
    return ~(logits.amax(-1) > -torch.inf)


class ProcessedTarget(TokenTarget):
    """A target whose laws may depend on the text in front, through `law`.

    A draft asks about texts that never come to be. Where processors leave no token behind one of
    them, that matters only if a token would join the output there: `check` says so.

    Args:
        model, law: the network, and how its logits become laws that drafts are judged by.
        vocab_size: tokens that laws are over.
        scores, logits: takes the processed scores of emitted tokens, and their logits as the
            network gives them; None: nobody asks for them.
    """

    def __init__(
        self,
        model: GuidedDecoder,
        law: ProcessedLaw,
        vocab_size: int,
        scores: EmittedScores | None = None,
        logits: EmittedScores | None = None,
    ) -> None:
        super().__init__(model, judged=law)
        self.law, self.vocab_size, self.scores, self.logits = law, vocab_size, scores, logits
        law.keeps = scores is not None
        if logits is not None:
            model.ranked = True
        self._last: tuple[Tensor | None, Tensor | None] = None, None
        self._fatal: dict[int, int] = {}  # by row, the place of a token that nothing allows

    def score(self, context: Context, draft: Draft) -> Scores:
        with self.law.looking(context, draft, self.vocab_size):
            scores = super().score(context, draft)
        told = self.model.told
        told = None if told is None else told[:, -scores.probs.shape[1] :]
        self._last = self.law.kept, told
        return scores

    def commit(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        super().commit(context, draft, verdict)
        self._fatal = self._places_of_dead(context, draft, verdict)
        for taker, said in zip((self.scores, self.logits), self._last, strict=True):
            if taker is not None and said is not None:
                taker.take(context, draft, verdict, said)

    def check(self, context: Context) -> None:
        """Raise an `InputError` if the last round's output has a token that nothing allows."""
        for row, place in self._fatal.items():
            if context.base[row] > place:
                sample = row if context.samples is None else context.samples[row]
                raise InputError(
                    "logits processors, or prefix_allowed_tokens_fn, allow no token behind "
                    f"{place} tokens of row {sample}; let them allow an end token there"
                )

    def _places_of_dead(self, context: Context, draft: Draft, verdict: Verdict) -> dict[int, int]:
        """By row, where its first token stands that was drawn by a law without one."""
        dead = self.law.dead
        if dead is None or not bool(dead.any()):
            return {}
        dead, most = dead[:, -1 - draft.nodes :], int(verdict.counts.max())
        drawn = dead.gather(1, verdict.drawn_by(draft)[:, :most])
        drawn &= torch.arange(most, device=drawn.device) < verdict.counts[:, None]
        found = zip(drawn.any(1).tolist(), drawn.int().argmax(1).tolist(), strict=True)
        return {
            row: context.base[row] + first
            for row, (any_, first) in enumerate(found)
            if any_ and not context.finished[row]
        }
