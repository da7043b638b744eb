"""Stopping criteria: a length, end tokens, stop strings, the clock, a user's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
)

from ..engine.draft import Context
from ..engine.protocols import Stop
from ..engine.stats import SpecStats
from ..errors import InputError
from ..models.transformers.read_texts import ReadTexts, of_one_row

_PARTIAL = "\N{REPLACEMENT CHARACTER}"  # of a character whose last bytes are still to come


class StopText(StoppingCriteria):
    """Strings that end a row, among the criteria that `generate` hands on to a loop of ours.

    Args:
        tokenizer: reads the text.
        strings: any of them ends it.
        alone: whether a row ends by itself where there is no end token, too, see `WritesOn`.
    """

    def __init__(self, tokenizer: Any, strings: str | Sequence[str], alone: bool = False) -> None:
        self.tokenizer, self.alone = tokenizer, alone
        many: Sequence[Any] = strings if isinstance(strings, list | tuple) else [strings]
        self.strings: list[str] = [s for s in many if isinstance(s, str) and s]
        if not many or len(self.strings) < len(many):
            raise InputError(f"stop strings must be text that is not empty, not {strings!r}")


@dataclass(frozen=True)
class Stops:
    """Stopping criteria of a call: total length, end tokens, deadline, stop strings, and others."""

    length: int
    eos: tuple[int, ...] = ()
    until: float = math.inf
    text: StopText | None = None
    others: tuple[Any, ...] = ()

    @classmethod
    def of(cls, criteria: Sequence[Any]) -> Stops:
        """Read transformers' stopping criteria, of which one must bound the length."""
        lengths, eos, until, text, others = [], [], math.inf, None, []
        for one in criteria:
            if type(one) is MaxLengthCriteria:
                lengths.append(one.max_length)
            elif type(one) is EosTokenCriteria:
                eos += one.eos_token_id.tolist()
            elif type(one) is MaxTimeCriteria:
                until = min(until, one.initial_timestamp + one.max_time)
            elif type(one) is StopText:
                text = one
            else:
                others.append(one)
        if not lengths:
            raise InputError("the output has no end; give max_new_tokens")
        return cls(min(lengths), tuple(eos), until, text, tuple(others))

    def looking(self, prompt: Tensor) -> Stop | None:
        """Make what looks at the text behind the prompt `[N, T]`; None: nothing does."""
        stop = self._looking(prompt)
        alone = self.eos or len(prompt) == 1 or (self.text is not None and self.text.alone)
        return stop if alone or stop is None else WritesOn(stop, len(prompt))

    def _looking(self, prompt: Tensor) -> Stop | None:
        """Find where a row ends by what it says."""
        own = StopCriteria(self.others, prompt) if self.others else None
        strings = None if self.text is None else StopStrings(self.text, prompt)
        if own is None or strings is None:
            return own or strings

        def both(context: Context, emitted: Tensor, counts: Tensor) -> Tensor:
            first = strings(context, emitted, counts)
            return torch.minimum(first, own(context, emitted, torch.minimum(counts, first)))

        return both


class WritesOn:
    """Rows of a batch without an end token: they write on until each of them was over once.

    So does transformers, which fills nothing up there. Rows stand at different places, so that some
    may have written more by then: `cut` takes that back.

    Args:
        stop: where a row is over.
        rows: of the batch.
    """

    def __init__(self, stop: Stop, rows: int) -> None:
        self.stop, self.rows = stop, rows
        self._over: dict[int, int] = {}  # by row, its tokens when it first was

    def __call__(self, context: Context, emitted: Tensor, counts: Tensor) -> Tensor:
        firsts = self.stop(context, emitted, counts).tolist()
        for row, (first, count) in enumerate(zip(firsts, counts.tolist(), strict=True)):
            if first <= count and not context.finished[row]:
                self._over.setdefault(row, context.base[row] + first)
        if self.width is None:
            return counts + 1
        left = [max(1, self.width - base) for base in context.base]
        return torch.tensor(left, device=emitted.device)

    @property
    def width(self) -> int | None:
        """Tokens of every row; None: some row was not over yet."""
        return max(self._over.values()) if len(self._over) == self.rows else None


def common_width(stop: Stop | None) -> int | None:
    """Tokens of every row of a batch without an end token; None: it has one, or is not over."""
    return stop.width if isinstance(stop, WritesOn) else None


def cut(context: Context, stop: Stop | None, stats: SpecStats) -> None:
    """Take back what rows of a batch without an end token have written while others were not over.

    Args:
        context: of a generation that is over.
        stop, stats: of the generation.
    """
    width = common_width(stop)
    if width is not None:
        context.base = [min(base, width) for base in context.base]
        context.lengths = context.lengths.clamp_max(width)
        for counts in (stats.emitted, stats.accepted):
            counts[:] = [min(count, width) for count in counts]


class StopCriteria:
    """The first emitted token at which one of a user's criteria says stop.

    They are asked behind every token, one after the other. A batch is whole and in order, as
    transformers' would be; the row's own answer counts. There are no scores.

    Args:
        criteria: called with ids `[N, T]` and None, say for every row whether it is over.
        prompt: ids `[N, T]`.
    """

    def __init__(self, criteria: Sequence[Any], prompt: Tensor) -> None:
        self.criteria, self.prompt = criteria, prompt

    def __call__(self, context: Context, emitted: Tensor, counts: Tensor) -> Tensor:
        texts = ReadTexts(self.prompt, context)
        rows = zip(emitted.tolist(), counts.tolist(), context.finished, strict=True)
        ends = [
            count + 1 if over else self._first(texts, row, tokens[:count])
            for row, (tokens, count, over) in enumerate(rows)
        ]
        return torch.tensor(ends, device=emitted.device)

    def _first(self, texts: ReadTexts, row: int, tokens: list[int]) -> int:
        for count in range(1, len(tokens) + 1):
            ids = texts.behind(row, tokens[:count])
            if any(self._over(one, texts, texts.samples[row], ids) for one in self.criteria):
                return count
        return len(tokens) + 1

    @staticmethod
    def _over(criterion: Any, texts: ReadTexts, sample: int, ids: Tensor) -> bool:
        def read(whole: Tensor) -> Tensor:
            return torch.as_tensor(criterion(whole, None))

        return bool(of_one_row(texts, ids, sample, read))


class StopStrings:
    """The first emitted token that completes a stop string in the decoded text.

    A string may begin in the prompt and end within a token, which then stays whole, as in
    transformers' `StopStringCriteria`. That one reads a vocabulary and needs one which can spell
    everything; decoded text any tokenizer has. The prompt is ids `[N, T]`.
    """

    def __init__(self, stop: StopText, prompt: Tensor) -> None:
        self.stop = stop
        # tokens that may hold the longest: a character has four bytes at most, a token each
        self.width = 4 * max(map(len, stop.strings)) + 4
        self.prompt: list[list[int]] = prompt[:, -self.width :].tolist()

    def __call__(self, context: Context, emitted: Tensor, counts: Tensor) -> Tensor:
        ends = []
        rows = zip(emitted.tolist(), counts.tolist(), strict=True)
        for row, tokens in enumerate(tokens[:count] for tokens, count in rows):
            done = context.base[row]
            own = context.tokens[row, max(0, done - self.width) : done].tolist()
            sample = row if context.samples is None else context.samples[row]
            ends.append(self._first([*self.prompt[sample], *own][-self.width :], tokens))
        return torch.tensor(ends, device=emitted.device)

    def _first(self, before: list[int], tokens: list[int]) -> int:
        """Tokens up to the end of a string, that one included; one more than there are: no end."""
        known = len(self._text(before).rstrip(_PARTIAL))
        if self._ends(known, [*before, *tokens]):
            for count in range(1, len(tokens) + 1):
                if self._ends(known, [*before, *tokens[:count]]):
                    return count
        return len(tokens) + 1

    def _ends(self, known: int, tokens: list[int]) -> bool:
        """True if a stop string ends behind the first `known` characters of a text."""
        text = self._text(tokens)
        return any(text.find(s, max(0, known - len(s) + 1)) >= 0 for s in self.stop.strings)

    def _text(self, tokens: list[int]) -> str:
        return self.stop.tokenizer.decode(
            tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
