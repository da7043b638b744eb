"""A compiled grammar of xgrammar as a logits processor that is a function of the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LogitsProcessor

from ...errors import InputError


class GrammarProcessor(LogitsProcessor):
    """Allows what a grammar allows behind a text, such as JSON of a schema.

    xgrammar's own processor takes in one token a call and can be used once. This one goes back to
    where a text leaves the last one, so that drafts may ask about any; it works in transformers'
    own `generate` as well, and again for the next prompt; set `prompt_length` if that is of another
    length.

    Example:
        >>> compiled = xgrammar.GrammarCompiler(info).compile_json_schema(schema)
        >>> grammar = GrammarProcessor(compiled, prompt_length=inputs["input_ids"].shape[1])
        >>> model.generate(**inputs, logits_processor=[grammar])

    Args:
        grammar: of all rows, or one for each; `xgrammar.CompiledGrammar`.
        prompt_length: columns of ids in front of the output; 0 for a prompt of embeddings.

    Raises:
        InputError: xgrammar is not installed, a grammar is not compiled, there is not one for each
            row, or `prompt_length` is no count.
    """

    def __init__(self, grammar: Any, prompt_length: int) -> None:
        try:
            import xgrammar
        except ImportError as error:
            raise InputError("grammars need the package xgrammar: pip install xgrammar") from error
        for one in grammar if isinstance(grammar, list | tuple) else [grammar]:
            if not isinstance(one, xgrammar.CompiledGrammar):
                raise InputError(
                    f"a grammar must be an xgrammar.CompiledGrammar, not a {type(one).__name__}: "
                    "give what xgrammar.GrammarCompiler compiles"
                )
        columns: object = prompt_length
        if not isinstance(columns, int) or columns < 0:
            raise InputError(f"prompt_length must be 0 or more, not {prompt_length!r}")
        self._xgrammar = xgrammar
        self.grammar, self.prompt_length = grammar, prompt_length
        self._matchers: list[Any] = []
        self._taken: list[list[int]] = []  # what each has taken in

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores `[N, V]` behind ids `[N, T]`, -inf where the grammar forbids a token.

        Behind its end, and where a text breaks it, all is allowed.
        """
        if len(self._matchers) != len(input_ids):
            self._begin(len(input_ids))
        masks = self._xgrammar.allocate_token_bitmask(len(input_ids), self._vocab_size)
        for row, text in enumerate(input_ids[:, self.prompt_length :].tolist()):
            self._fill(row, text, masks, row)
        return self._allowed(masks, scores)

    def of_row(self, row: int, rows: int, ids: Tensor, scores: Tensor) -> Tensor:
        """Scores `[V]` behind the text `ids [T]` of one of a batch's rows."""
        if len(self._matchers) != rows:
            self._begin(rows)
        masks = self._xgrammar.allocate_token_bitmask(1, self._vocab_size)
        self._fill(row, ids[self.prompt_length :].tolist(), masks, 0)
        return self._allowed(masks, scores[None])[0]

    def _fill(self, row: int, text: list[int], masks: Tensor, place: int) -> None:
        """Write what is allowed behind a row's text into `masks[place]`."""
        if self._follows(row, text) and not self._matchers[row].is_terminated():
            self._matchers[row].fill_next_token_bitmask(masks, place)

    def _allowed(self, masks: Tensor, scores: Tensor) -> Tensor:
        ids = torch.arange(min(self._vocab_size, scores.shape[-1]))
        allowed = (masks[:, ids // 32] >> (ids % 32)) & 1 == 1
        allowed = F.pad(allowed, (0, scores.shape[-1] - len(ids)))  # no words beyond
        return scores.masked_fill(~allowed.to(scores.device), -torch.inf)

    def _begin(self, rows: int) -> None:
        many = isinstance(self.grammar, Sequence)
        grammars = list(self.grammar) if many else [self.grammar] * rows
        if len(grammars) != rows:
            raise InputError(f"{len(grammars)} grammars for {rows} rows; give one, or one for each")
        self._vocab_size: int = grammars[0].tokenizer_info.vocab_size
        self._matchers = [self._xgrammar.GrammarMatcher(grammar) for grammar in grammars]
        self._taken = [[] for _ in grammars]

    def _follows(self, row: int, text: list[int]) -> bool:
        """Let a matcher stand behind `text`; False: the text breaks the grammar."""
        matcher, taken = self._matchers[row], self._taken[row]
        pairs = enumerate(zip(taken, text, strict=False))
        shared = next((n for n, (a, b) in pairs if a != b), min(len(taken), len(text)))
        if shared < len(taken):
            matcher.rollback(len(taken) - shared)
            del taken[shared:]
        for token in text[shared:]:
            if matcher.is_terminated() or not matcher.accept_token(token):
                return False
            taken.append(token)
        return True
