"""Answers to questions about pictures, as they are written."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from . import markup
from .generation_view import GenerationView, Wish, drafted


class VlmView(GenerationView):
    """An answer whose drafted words are marked."""

    def __init__(self, pipe: Any, wish: Wish) -> None:
        super().__init__(pipe, wish)
        self.tokens: list[int] = []

    @property
    def tokenizer(self) -> Any:
        return self.pipe.processor.tokenizer

    def generate(self, **call: Any) -> Any:
        return self.pipe(self.wish.prompt, self.wish.picture, **call)

    def observe(self, state: dict[str, Any]) -> None:
        self.made += drafted(self, state)
        self.tokens = state["context"].tokens[0, : len(self.made)].tolist()

    def html(self) -> str:
        return markup.spans(self.pieces())

    def pieces(self) -> list[tuple[str, bool]]:
        """The text so far, cut where its maker changes.

        A piece is what its tokens add to the text before them: a character may take several.
        """
        found, told, at = [], "", 0
        for maker, group in groupby(self.made):
            at += len(list(group))
            text = self._text(self.tokens[:at])
            whole = text.rstrip("\N{REPLACEMENT CHARACTER}")  # the rest of it comes with the next
            found.append((whole[len(told) :], bool(maker)))
            told = whole
        return [piece for piece in found if piece[0]]

    def _text(self, tokens: list[int]) -> str:
        text: str = self.tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text
