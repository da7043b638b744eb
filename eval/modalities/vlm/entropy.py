"""Entropy of the target's laws on its own answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from ....methods import SpecConfig
from ....pipelines.verdict.expert import continued
from ....pipelines.vlm.pipeline import VlmPipeline
from ...variants import PLAIN
from .answers import Questions
from .inputs import inputs_of
from .variants import VlmMethod


@torch.inference_mode()
def answer_entropy(
    pipe: VlmPipeline, inputs: Questions, seeds: Sequence[int], max_new_tokens: int
) -> float:
    """Mean entropy, in nats per token, of the target's laws on its own answers.

    `H = −Σ_v p(v) log p(v)` with p the softmax of its logits at temperature 1, nothing cut off. The
    answers are drawn from these laws by the plain loop; the laws are read off one forward pass of
    transformers' over prompt and answer, the token that ends an answer included.
    """
    plain = VlmMethod(SpecConfig(PLAIN), pipe)
    call = {"max_new_tokens": max_new_tokens, "temperature": 1.0}
    # a picture's placeholder is no text that a forward pass could read
    stop = pipe.model.config.image_token_id
    drawn = plain.prepare(inputs, seeds, call)().tokens
    answers = [ids[: ids.index(stop)] if stop in ids else ids for ids in drawn]
    total = sum(
        float(torch.special.entr(laws(pipe, picture, question, answer)).sum())
        for picture, question, answer in zip(inputs.pictures, inputs.texts, answers, strict=True)
        if answer
    )
    return total / max(1, sum(map(len, answers)))


def laws(pipe: VlmPipeline, picture: Image.Image, question: str, answer: list[int]) -> Tensor:
    """The target's laws `[L, V]` of the tokens of an answer, at temperature 1."""
    model = pipe.model
    prompt = inputs_of(pipe, picture, question)
    tokens = torch.tensor([answer], device=model.device)
    given = continued(prompt, tokens, torch.ones_like(tokens, dtype=torch.bool))
    logits = model(**given, logits_to_keep=len(answer) + 1, use_cache=False).logits
    return logits[0, -len(answer) - 1 : -1].double().softmax(-1)
