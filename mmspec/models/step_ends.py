"""Ends of steps of text, told by the text of tokens as they are drawn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

StepKind = Literal["sentence", "line", "paragraph"]
ENDS: dict[str, re.Pattern[str]] = {
    "sentence": re.compile(r"[.!?;][\"')\]]*\s*$|\n\s*$"),
    "line": re.compile(r"\n\s*$"),
    "paragraph": re.compile(r"\n\s*\n\s*$"),
}


class StepEnds:
    """Tells whether a step is over: at the end of a sentence, a line, or a paragraph.

    Its last two tokens are looked at, so that a mark and what closes it may be two.

    Args:
        tokenizer: of the tokens; it has `decode`.
        kind: of step; a line and a paragraph end sentences, too.
        eos: tokens that end a text, and so its last step.
    """

    def __init__(
        self, tokenizer: Any, kind: StepKind = "sentence", eos: Sequence[int] = ()
    ) -> None:
        self.tokenizer, self.pattern, self.eos = tokenizer, ENDS[kind], frozenset(eos)
        self._known = lru_cache(2**16)(self._ends)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Rows `[B]` in which the last of the step's tokens so far, `[B, n]`, ends it."""
        rows = [self._known(*row) for row in tokens[:, -2:].tolist()]
        return torch.tensor(rows, device=tokens.device)

    def _ends(self, *last: int) -> bool:
        text = self.tokenizer.decode([*last], skip_special_tokens=True)
        return last[-1] in self.eos or self.pattern.search(text) is not None
