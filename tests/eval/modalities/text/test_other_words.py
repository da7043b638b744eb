"""transformers' assisted generation with a drafter of other words, beside ours."""

from __future__ import annotations

from functools import partial

import pytest
import texts
import torch
from tokenizers_of_two_kinds import sentence_piece

import mmspec
from mmspec.eval.modalities.vlm.peers import Peer

PROMPT = "the dog and the dog saw the cat. the dog and"


@pytest.fixture(scope="module")
def pipe():
    words, others = texts.tokenizer(chat=False), sentence_piece(120)
    llama, small = texts.model(words), texts.model(others, seed=1)
    return mmspec.TextPipeline(llama, words, drafter=small, drafter_tokenizer=others)


def inputs(pipe):
    ids = torch.tensor([pipe.tokenizer(PROMPT)["input_ids"]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_assistant_is_told_both_tokenizers(pipe, temperature):
    call = {"max_new_tokens": 20, "temperature": temperature}
    peer = Peer(assisted=True, length=3)
    said = peer.answer(pipe, pipe.tokenizer, partial(inputs, pipe), 3, call)
    assert len(said.tokens[0]) <= 20
    assert said.stats.seconds["draft"] > 0
    if not temperature:
        pipe.enable_speculation("draft")
        assert said.tokens == pipe(PROMPT, max_new_tokens=20).tokens
