"""Tokens around a question about a picture and its answer, as a chat template lays them out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ...errors import InputError
from ...models.transformers.prompt_inputs import one_start

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
    def of(cls, processor: Any, ends: Collection[int] = ()) -> Turns:
        """The turns of a processor's chat template, which puts a picture right before its text.

        Args:
            ends: tokens that end an answer, beside the tokenizer's own.

        Raises:
            InputError: the template changes the words, or ends an answer with none of those tokens.
        """
        content = [{"type": "image"}, {"type": "text", "text": _QUESTION}]
        asked: list[dict[str, Any]] = [{"role": "user", "content": content}]
        tokenizer, image = processor.tokenizer, processor.image_token
        text = processor.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
        answered = [*asked, {"role": "assistant", "content": _ANSWER}]
        whole = processor.apply_chat_template(answered, tokenize=False)
        parts, last = text.split(image + _QUESTION), whole.split(_ANSWER)
        if len(parts) != 2 or len(last) != 2:
            raise InputError(
                "the chat template does not show the words of a question and its answer as they are"
            )
        before, between, end = (
            tokenizer(part, add_special_tokens=False).input_ids for part in (*parts, last[1])
        )
        # some tokenizers put a start token in front that the template does not write
        first = tokenizer(parts[0], **one_start(tokenizer, [text])).input_ids[:1]
        if first == [tokenizer.bos_token_id] != before[:1]:
            before = first + before
        stops = [n for n, token in enumerate(end) if token in {tokenizer.eos_token_id, *ends}]
        if not stops:
            raise InputError("the chat template ends an answer with no token that stops the model")
        return cls(tokenizer, before, processor.image_token_id, between, end[: stops[0] + 1])

    def said(self, text: str) -> list[int]:
        """Ids of a text within a turn."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return ids
