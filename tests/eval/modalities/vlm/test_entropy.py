"""The entropy of answers, token by token and by hand."""

from __future__ import annotations

import math

import pytest
import torch

from mmspec.eval.modalities.vlm.answers import Questions
from mmspec.eval.modalities.vlm.entropy import answer_entropy, logits
from mmspec.eval.modalities.vlm.inputs import inputs_of

NEW = 10


@torch.no_grad()
def by_hand(pipe, picture, question, answer) -> list[float]:
    """Entropy by a forward pass of the whole text for each token, nothing kept in between."""
    found = []
    for place in range(len(answer)):
        given = inputs_of(pipe, picture, question)
        more = torch.tensor([answer[:place]], dtype=torch.long)
        given["input_ids"] = torch.cat([given["input_ids"], more], dim=1)
        given["attention_mask"] = torch.ones_like(given["input_ids"])
        law = pipe.model(**given).logits[0, -1].double().softmax(-1).tolist()
        found.append(-sum(p * math.log(p) for p in law if p > 0))
    return found


def test_entropy_is_that_of_laws_by_hand(pipe, items):
    pictures, questions = [i.picture(64) for i in items], [i.prompt for i in items]
    made = answer_entropy(pipe, Questions(pictures, questions), [3, 4], NEW)
    generators = [torch.Generator().manual_seed(seed) for seed in (3, 4)]
    said = pipe(
        questions, pictures, max_new_tokens=NEW, temperature=1.0, generator=generators
    ).tokens
    placeholder = pipe.model.config.image_token_id
    assert not any(placeholder in answer for answer in said)
    nats = [
        value
        for asked in zip(pictures, questions, said, strict=True)
        for value in by_hand(pipe, *asked)
    ]
    assert made == pytest.approx(sum(nats) / len(nats), abs=1e-5)
    assert made > 0.1


def test_laws_are_those_of_the_token_that_follows(pipe, items):
    picture, question = items[0].picture(64), items[0].prompt
    greedy = pipe(question, picture, max_new_tokens=NEW).tokens[0]
    prompt = inputs_of(pipe, picture, question)
    assert logits(pipe.model, prompt, greedy)[:-1].argmax(-1).tolist() == greedy
