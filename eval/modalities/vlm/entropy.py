"""Entropy of the target's laws on its own answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

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
    asked = zip(inputs.pictures, inputs.texts, strict=True)
    return mean_entropy(pipe.model, (inputs_of(pipe, *one) for one in asked), answers)


@torch.inference_mode()
def mean_entropy(
    model: PreTrainedModel, prompts: Iterable[dict[str, Tensor]], answers: Iterable[list[int]]
) -> float:
    """Mean entropy, in nats per token, of a model's laws of the tokens of answers to prompts."""
    total, tokens = 0.0, 0
    for prompt, answer in zip(prompts, answers, strict=True):
        if answer:
            law = logits(model, prompt, answer)[:-1].double().softmax(-1)
            total += float(torch.special.entr(law).sum())
            tokens += len(answer)
    return total / max(1, tokens)


@torch.inference_mode()
def logits(model: PreTrainedModel, prompt: dict[str, Tensor], answer: list[int]) -> Tensor:
    """A model's logits `[L + 1, V]` of the tokens of an answer, and of the one behind it."""
    tokens = torch.tensor([answer], dtype=torch.long, device=model.device)
    given = continued(prompt, tokens, torch.ones_like(tokens, dtype=torch.bool))
    out = model(**given, logits_to_keep=len(answer) + 1, use_cache=False).logits
    return out[0, -len(answer) - 1 :]
