"""Tokens around a question about a picture and its answer, as a chat template lays them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_QUESTION, _ANSWER = "\1", "\2"  # stand for what is said; no template writes them


@dataclass(frozen=True)
class Turns:
    """A conversation of one question and one answer.

    Attributes:
        tokenizer: of the model.
        before: ids in front of the picture.
        image: id of a place of the picture.
        between: ids between question and answer.
        end: ids behind an answer, up to the token that ends it.
    """

    tokenizer: Any
    before: list[int]
    image: int
    between: list[int]
    end: list[int]

    @classmethod
    def of(cls, processor: Any) -> Turns:
        """The turns of a processor's chat template, which puts a picture right before its text."""
        content = [{"type": "image"}, {"type": "text", "text": _QUESTION}]
        asked: list[dict[str, Any]] = [{"role": "user", "content": content}]
        tokenizer, image = processor.tokenizer, processor.image_token
        text = processor.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
        before, between = text.split(image + _QUESTION)
        answered = [*asked, {"role": "assistant", "content": _ANSWER}]
        _, end = processor.apply_chat_template(answered, tokenize=False).split(_ANSWER)
        first, middle, last = (
            tokenizer(part, add_special_tokens=False).input_ids for part in (before, between, end)
        )
        last = last[: last.index(tokenizer.eos_token_id) + 1]
        return cls(tokenizer, first, processor.image_token_id, middle, last)

    def said(self, text: str) -> list[int]:
        """Ids of a text within a turn."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return ids
