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

Answer = Callable[[list[list[Message]], list[int], Mapping[str, Any]], Answers]


@dataclass(frozen=True)
class Talk:
    """A variant that answers conversations turn by turn, each with its own answers in it.

    Attributes:
        answer: to prompts of messages, their seeds, and the arguments of a pipeline's call.
        alone: it answers one prompt at a time.
    """

    answer: Answer
    alone: bool = False

    def prepare(
        self, inputs: Sequence[Conversation], seeds: Sequence[int], call: Mapping[str, Any]
    ) -> Callable[[], Answers]:
        """Prepare the timed function: turn by turn, all conversations that have one at once."""

        def answers() -> Answers:
            told: list[list[Message]] = [[] for _ in inputs]
            turns: list[list[list[int]]] = [[] for _ in inputs]
            stats = []
            for turn in range(max(len(one.turns) for one in inputs)):
                rows = [n for n, one in enumerate(inputs) if turn < len(one.turns)]
                for row in rows:
                    told[row].append({"role": "user", "content": inputs[row].turns[turn]})
                made = self.answer([told[n] for n in rows], [seeds[n] for n in rows], call)
                for row, text, tokens in zip(rows, made.text, made.tokens, strict=True):
                    told[row].append({"role": "assistant", "content": text})
                    turns[row].append(tokens)
                stats.append(made.stats)
            whole = stats[0].merged(stats[1:])
            texts = ["\n\n".join(str(m["content"]) for m in own[1::2]) for own in told]
            ids = [[token for answer in own for token in answer] for own in turns]
            return Answers(texts, ids, whole.as_one(), turns=turns)

        return answers


def of_method(config: SpecConfig, pipe: TextPipeline) -> Talk:
    """A method, with a pipeline of its own over the components of another."""
    own = TextPipeline(**pipe.components)
    own.enable_speculation(config)

    def answer(prompts: list[list[Message]], seeds: list[int], call: Mapping[str, Any]) -> Answers:
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        out = own(prompts, generator=generators, **call)
        assert isinstance(out, VlmOutput)
        return Answers(out.text, out.tokens, out.stats)

    return Talk(answer)


def of_peer(peer: Peer, pipe: TextPipeline) -> Talk:
    """transformers' own generation; it drafts for one prompt at a time.

    In a closed loop its batches come one after the other, each as long as its longest answer.
    """

    def answer(prompts: list[list[Message]], seeds: list[int], call: Mapping[str, Any]) -> Answers:
        inputs = partial(process_texts, pipe.tokenizer, prompts, pipe.model.device)
        return peer.answer_or_refuse(pipe, pipe.tokenizer, inputs, seeds[0], call)

    def in_batches(
        prompts: list[list[Message]], seeds: list[int], call: Mapping[str, Any]
    ) -> Answers:
        size = call.get("batch_size") or len(prompts)
        parts = [
            answer(prompts[first : first + size], seeds[first : first + size], call)
            for first in range(0, len(prompts), size)
        ]
        text, tokens = ([x for part in parts for x in getattr(part, n)] for n in ("text", "tokens"))
        return Answers(text, tokens, parts[0].stats.merged([part.stats for part in parts[1:]]))

    return Talk(in_batches, alone=peer.drafts)


def inputs_of(pipe: TextPipeline, messages: Sequence[Message]) -> dict[str, Tensor]:
    """Inputs of a pipeline's target for messages."""
    return process_texts(pipe.tokenizer, [messages], pipe.model.device)
