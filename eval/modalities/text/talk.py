"""Answers of variants to conversations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ....methods import SpecConfig
from ....models.transformers.text_inputs import process_texts
from ....pipelines.output import VlmOutput
from ....pipelines.text.pipeline import TextPipeline
from ....pipelines.vlm.chat import Message
from ...data.conversations import Conversation
from ..vlm.answers import Answers
from ..vlm.peers import Peer

Answer = Callable[[list[Message], int, Mapping[str, Any]], Answers]


@dataclass(frozen=True)
class Talk:
    """A variant that answers conversations turn by turn, each with its own answers in it.

    Attributes:
        answer: to messages, a seed, and the arguments of a pipeline's call.
    """

    answer: Answer

    def prepare(
        self, inputs: Sequence[Conversation], seeds: Sequence[int], call: Mapping[str, Any]
    ) -> Callable[[], Answers]:

        def answers() -> Answers:
            first, *others = [
                self._talk(one, seed, call) for one, seed in zip(inputs, seeds, strict=True)
            ]
            return first.joined(others)

        return answers

    def _talk(self, one: Conversation, seed: int, call: Mapping[str, Any]) -> Answers:
        """All answers of one conversation as one, a paragraph each."""
        told: list[Message] = []
        made: list[Answers] = []
        for turn in one.turns:
            told.append({"role": "user", "content": turn})
            made.append(self.answer(told, seed, call))
            told.append({"role": "assistant", "content": made[-1].text[0]})
        whole = made[0].joined(made[1:])
        text, tokens = "\n\n".join(whole.text), [t for ids in whole.tokens for t in ids]
        return Answers([text], [tokens], whole.stats.as_one(), turns=[whole.tokens])


def of_method(config: SpecConfig, pipe: TextPipeline) -> Talk:
    """A method, with a pipeline of its own over the components of another."""
    own = TextPipeline(**pipe.components)
    own.enable_speculation(config)

    def answer(messages: list[Message], seed: int, call: Mapping[str, Any]) -> Answers:
        out = own(messages, generator=torch.Generator().manual_seed(seed), **call)
        assert isinstance(out, VlmOutput)
        return Answers(out.text, out.tokens, out.stats)

    return Talk(answer)


def of_peer(peer: Peer, pipe: TextPipeline) -> Talk:
    """transformers' own generation."""

    def answer(messages: list[Message], seed: int, call: Mapping[str, Any]) -> Answers:
        inputs = partial(inputs_of, pipe, messages)
        return peer.answer_or_refuse(pipe, pipe.tokenizer, inputs, seed, call)

    return Talk(answer)


def inputs_of(pipe: TextPipeline, messages: Sequence[Message]) -> dict[str, Tensor]:
    """Inputs of a pipeline's target for messages."""
    return process_texts(pipe.tokenizer, [messages], pipe.model.device)
