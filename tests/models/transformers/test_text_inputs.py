"""Inputs of texts against transformers' own templates."""

from __future__ import annotations

import pytest
import texts
import torch

from mmspec.errors import InputError
from mmspec.models.transformers.text_inputs import process_texts

SAID = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "the cat?"},
    {"role": "assistant", "content": "The dog."},
    {"role": "user", "content": "and the dog saw?"},
]


def test_rows_are_those_of_the_template():
    words = texts.tokenizer()
    prompts = ["the cat", SAID, "ünïcode <|im_end|>"]
    found = process_texts(words, prompts, "cpu")
    for ids, mask, prompt in zip(found["input_ids"], found["attention_mask"], prompts, strict=True):
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        own = words.apply_chat_template(turns, add_generation_prompt=True)
        assert ids[mask.bool()].tolist() == own["input_ids"]
        assert torch.equal(mask, mask.sort().values)  # padded on the left
    assert words.pad_token is None  # the user's tokenizer stays as it is


def test_without_a_template_text_is_text():
    words = texts.tokenizer(chat=False)
    found = process_texts(words, ["the cat"], "cpu")
    assert found["input_ids"].tolist() == [words("the cat")["input_ids"]]
    with pytest.raises(InputError, match="has no chat template"):
        process_texts(words, [SAID], "cpu")


def test_what_a_template_refuses():
    words = texts.tokenizer()
    words.chat_template = "{{ raise_exception('no system turns') }}"
    with pytest.raises(InputError, match="the tokenizer refuses the prompt: no system turns"):
        process_texts(words, [SAID], "cpu")
