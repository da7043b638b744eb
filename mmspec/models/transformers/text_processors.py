"""Logits processors of transformers that look at the text in front of a law, also a user's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers.generation import logits_process as processes

from ...engine.draft import Draft
from ...errors import InputError
from .grammar import GrammarProcessor
from .prompted import refuse
from .read_texts import Place, ReadTexts, of_one_row

CONSTRAINED = processes.PrefixConstrainedLogitsProcessor
# these treat every text alike, whichever row of the batch it is
ALIKE = (
    processes.NoRepeatNGramLogitsProcessor,
    processes.NoBadWordsLogitsProcessor,
    processes.SequenceBiasLogitsProcessor,
    processes.ExponentialDecayLengthPenalty,
    processes.SuppressTokensAtBeginLogitsProcessor,
    processes.ForcedBOSTokenLogitsProcessor,
    processes.ForcedEOSTokenLogitsProcessor,
    processes.WatermarkLogitsProcessor,
)


FORBIDDEN = 1e4  # so far below the largest score a token's probability is 0; some write no -inf


class TextProcessor:
    """A logits processor, asked about every text that a draft may lead to.

    It has to be a function of ids and scores: a draft asks about many texts that never come to be.
    Its first question is put again ever more rarely, and one that answers in another way is
    refused. One that is not transformers' own is not asked about texts behind a token that it
    forbids: they can't stand, and it may know no answer.

    Args:
        processor: called with ids `[N, T]` and scores `[N, V]` in float32, gives scores. A batch is
            whole and in order, as transformers' would be.
    """

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self._asked_so_far = 0
        self._first: tuple[Callable[[], Tensor], Tensor] | None = None
        if type(processor) is processes.SynthIDTextWatermarkLogitsProcessor:
            refuse("the watermark SynthID, which keeps a state from call to call")

    def __call__(self, logits: Tensor, texts: ReadTexts, draft: Draft) -> Tensor:
        """Logits `[B, 1 + nodes, V]` behind the last tokens and behind every node, processed.

        Raises:
            InputError: the processor keeps a state.
        """
        said = logits.clone()
        stands: set[tuple[int, int]] = set()
        for places in texts.levels(draft):
            known = type(self.processor) in ALIKE
            asked = places if known else self._possible(places, said, stands)
            stands.update((place.row, place.law) for place in asked)
            for some, ids in texts.alike(asked):
                rows = torch.tensor([p.row for p in some], device=logits.device)
                laws = torch.tensor([p.law for p in some], device=logits.device)
                scores = self._all(texts, some, ids, logits[rows, laws].float())
                said[rows, laws] = scores.to(said.dtype)
        return said

    @staticmethod
    def _possible(places: list[Place], said: Tensor, stands: set[tuple[int, int]]) -> list[Place]:
        """Those that no forbidden token leads to."""
        steps = [(p.row, p.above, p.tail[-1]) for p in places if p.above is not None]
        if not steps:
            return places
        index = torch.tensor(steps, device=said.device).unbind(1)
        rows, laws, _ = index
        allowed = (said[index] > said[rows, laws].amax(-1) - FORBIDDEN).tolist()
        both = zip(places, allowed, strict=True)
        return [place for place, may in both if may and (place.row, place.above) in stands]

    def _all(self, texts: ReadTexts, places: list[Place], ids: Tensor, scores: Tensor) -> Tensor:
        """Scores `[n, V]` behind texts `[n, T]` of one length."""
        kind = type(self.processor)
        if kind in ALIKE:
            return self.processor(ids, scores)
        one = {CONSTRAINED: self._constrained, GrammarProcessor: self._of_grammar}
        ask = one.get(kind, self._of_any)
        lines = zip(places, ids, scores, strict=True)
        return torch.stack([self._checked(partial(ask, texts, *line)) for line in lines])

    def _constrained(self, texts: ReadTexts, place: Place, ids: Tensor, scores: Tensor) -> Tensor:
        """Scores `[V]` of what the user's function allows behind one text; it may be nothing."""
        many: Any = self.processor
        allowed = many._prefix_allowed_tokens_fn(place.sample // many._num_beams, ids)
        if not len(allowed):  # transformers raises an error, and this text may never come to be
            return torch.full_like(scores, -torch.inf)
        one = CONSTRAINED(lambda *_: allowed, num_beams=1)
        return one(ids[None], scores[None])[0]

    def _of_grammar(self, texts: ReadTexts, place: Place, ids: Tensor, scores: Tensor) -> Tensor:
        return self.processor.of_row(place.sample, len(texts.prompt), ids, scores)

    def _of_any(self, texts: ReadTexts, place: Place, ids: Tensor, scores: Tensor) -> Tensor:
        """Scores `[V]` behind one text, by a processor that may look at any row of a batch."""

        def read(whole: Tensor) -> Tensor:
            given = scores.repeat(len(whole), 1)
            said: Any = self.processor(whole, given)
            shape = tuple(said.shape) if isinstance(said, Tensor) else type(said).__name__
            if shape != tuple(given.shape):
                raise InputError(
                    f"the logits processor {self._name} gives {shape} where it was given scores "
                    f"{tuple(given.shape)}; it must give as many"
                )
            return said

        return of_one_row(texts, ids, place.sample, read)

    def _checked(self, ask: Callable[[], Tensor]) -> Tensor:
        """The answer; the first question is put again behind the 1st, 2nd, 4th, 8th … answer."""
        said = ask()
        if self._first is None:
            self._first = ask, said.clone()
        self._asked_so_far += 1
        if self._asked_so_far & (self._asked_so_far - 1) == 0:
            again, before = self._first
            try:
                same = torch.allclose(again(), before, rtol=0, atol=0, equal_nan=True)
            except torch.OutOfMemoryError:
                raise
            except Exception:  # a user's code may raise anything where it is asked twice
                same = False
            if not same:
                self._refuse()
        return said

    @property
    def _name(self) -> str:
        if type(self.processor) is CONSTRAINED:
            return "prefix_allowed_tokens_fn"
        return str(getattr(self.processor, "__name__", type(self.processor).__name__))

    def _refuse(self) -> NoReturn:
        raise InputError(
            f"the logits processor {self._name} answers one question in two ways: it keeps a "
            "state, or draws. A draft asks about texts that never come to be; make it a function "
            "of ids and scores (of a grammar of xgrammar, mmspec.GrammarProcessor is one)"
        )
