"""A conversation with a language model: turns, and a cache that is kept between them."""

from __future__ import annotations

from typing import Any

from ...errors import InputError
from ..output import VlmOutput
from ..vlm.chat import Message
from ..vlm.memory import Memory
from .pipeline import TextPipeline


class Chat:
    """A conversation; every turn reads its own words alone, for the cache of the last is kept.

    Methods that read hidden states of the target read the whole prompt anew.

    Args:
        pipe: answers, as its speculation is set.
        system: what stands in front of the conversation; None: what the chat template says.

    Attributes:
        messages: all turns so far.
        memory: what the model has read of them.
    """

    def __init__(self, pipe: TextPipeline, system: str | None = None) -> None:
        if getattr(pipe.tokenizer, "chat_template", None) is None:
            kind = type(pipe.tokenizer).__name__
            raise InputError(f"{kind} has no chat template; set pipe.tokenizer.chat_template")
        self.pipe, self.memory = pipe, Memory()
        self.messages: list[Message] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})

    def say(self, text: str, **call: Any) -> VlmOutput:
        """Answer to the user's next turn, which joins the conversation with it.

        Args:
            text: what the user says.
            call: arguments of `TextPipeline.__call__`.

        Raises:
            InputError: see there, or it is among what a conversation gives itself; the conversation
                is as before.
        """
        for name in ("prompt", "memory", "return_dict"):
            if name in call:
                raise InputError(f"a conversation gives the pipeline its own {name}; leave it out")
        told = [*self.messages, {"role": "user", "content": text}]
        out = self.pipe(told, memory=self.memory, **call)
        assert isinstance(out, VlmOutput)
        self.messages = [*told, {"role": "assistant", "content": out.text[0]}]
        return out
