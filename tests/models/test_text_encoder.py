"""Captions on their way to the model."""

from __future__ import annotations

import pytest
from transformers import T5Config, T5EncoderModel

from mmspec.models.text_encoder import encode_captions, encode_prompt, unknown_words
from mmspec.train.tokenizers import PREFIX, clip_tokenizer, exchange_tokenizer


@pytest.mark.parametrize("encode", [encode_prompt, encode_captions])
def test_words_that_the_model_can_not_know_are_named(encode, caplog):
    words = clip_tokenizer()
    config = T5Config(vocab_size=len(words), d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    encoder = T5EncoderModel(config)

    def told(prompt: str) -> list[str]:
        caplog.clear()
        encode(words, encoder, [prompt] if encode is encode_captions else prompt, PREFIX)
        return [record.message for record in caplog.records]

    assert told("a red circle moves right") == []
    assert told("a red  wombat moves right, twice") == ["the model does not know 'wombat', 'twice'"]
    assert told("a wombat and a numbat move, twice") == ["the model does not know 'numbat'"]
    assert told("a red  wombat moves right, twice") == []


def test_a_word_is_known_in_either_place():
    """Where a token is a word with the space in front of it."""
    assert unknown_words(exchange_tokenizer(), "How many stars are there, Wombat?") == ["Wombat"]
    assert unknown_words(exchange_tokenizer(), "stars? How many") == []
