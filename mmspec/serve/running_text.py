"""Text of an answer that is being written: what of it is sure, and where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_PARTIAL = "\N{REPLACEMENT CHARACTER}"  # of a character whose last bytes are still to come


class RunningText:
    """Answer that is told token by token.

    Args:
        tokenizer: of transformers.
        limit: tokens that it may have.
        ends: ids of end tokens.
        stops: strings that end it and are no part of it.

    Attributes:
        tokens: ids so far.
        finish: why it is over: "stop" or "length"; None: it is not.
    """

    def __init__(
        self, tokenizer: Any, limit: int, ends: Sequence[int] = (), stops: Sequence[str] = ()
    ) -> None:
        self.tokenizer, self.limit, self.ends, self.stops = tokenizer, limit, set(ends), stops
        self.tokens: list[int] = []
        self.finish: str | None = None
        self._told = 0  # characters that were given out

    def add(self, tokens: Sequence[int]) -> str:
        """Take in more tokens; gives the text that is sure now and was not before."""
        for token in tokens:
            if self.finish is not None:
                break
            self.tokens.append(token)
            if token in self.ends or (self.stops and self._stop() is not None):
                self.finish = "stop"
            elif len(self.tokens) == self.limit:
                self.finish = "length"
        return self._news()

    def close(self) -> str:
        """Nothing more will come; gives what was held back."""
        self.finish = self.finish or "stop"
        return self._news()

    def _text(self) -> str:
        # cleaned up, a text would get shorter behind what was told of it
        how = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return str(self.tokenizer.decode(self.tokens, **how))

    def _stop(self) -> int | None:
        """Where the first stop string begins."""
        text = self._text()
        found = [place for place in (text.find(s) for s in self.stops) if place >= 0]
        return min(found, default=None)

    def _news(self) -> str:
        text = self._text()
        if self.finish is None:
            sure = len(text.rstrip(_PARTIAL))
            # what may be the beginning of a stop string is not sure
            sure = min([sure, *(self._begun(text[:sure], stop) for stop in self.stops)])
        else:
            stop = self._stop() if self.stops else None
            sure = len(text) if stop is None else stop
        news = text[self._told : sure]
        self._told = max(self._told, sure)
        return news

    @staticmethod
    def _begun(text: str, stop: str) -> int:
        """Where a stop string may have begun at the end of `text`; its length: nowhere."""
        for size in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:size]):
                return len(text) - size
        return len(text)
