"""Conversations: the cache is kept from turn to turn, and says what a fresh prompt says."""

from __future__ import annotations

import pytest
import texts
import torch

import mmspec
from mmspec.errors import InputError
from mmspec.models.transformers.causal import CausalDecoder

TURNS = ["the cat saw the dog?", "and the dog", "the dog saw the cat. the"]


@pytest.fixture
def pipe():
    words = texts.tokenizer()
    return mmspec.TextPipeline(texts.model(words), words, drafter=texts.model(words, seed=1))


@pytest.fixture
def read(monkeypatch):
    """Columns that the target has been given, call by call."""
    counts = []
    forward = CausalDecoder.forward

    def counted(self, x, *args, **options):
        counts.append((id(self.model), x.shape[1]))
        return forward(self, x, *args, **options)

    monkeypatch.setattr(CausalDecoder, "forward", counted)
    return counts


@pytest.mark.parametrize("method", ["plain", "prompt-lookup", "draft", "tree", "token-recycling"])
def test_every_turn_is_what_a_fresh_prompt_gives(pipe, method):
    try:
        pipe.enable_speculation(method)
    except InputError:
        pytest.fail(f"{method} should run")
    chat = mmspec.Chat(pipe, system="Be short.")
    for turn in TURNS:
        told = [*chat.messages, {"role": "user", "content": turn}]
        fresh = pipe(told, max_new_tokens=20)
        answer = chat.say(turn, max_new_tokens=20)
        assert answer.tokens == fresh.tokens
        assert chat.messages == [*told, {"role": "assistant", "content": fresh.text[0]}]


def test_a_turn_reads_its_own_words_alone(pipe, read):
    chat = mmspec.Chat(pipe)
    chat.say(TURNS[0], max_new_tokens=20)
    assert chat.memory.reused == 0
    told = [*chat.messages, {"role": "user", "content": TURNS[1]}]
    ids = pipe.tokenizer.apply_chat_template(told, add_generation_prompt=True)["input_ids"]
    read.clear()
    chat.say(TURNS[1], max_new_tokens=1)
    (_, prefilled), (_, first) = read
    assert first == 1
    assert prefilled == len(ids) - 1 - chat.memory.reused
    assert chat.memory.reused > len(ids) // 2


def test_an_edited_turn_is_read_from_where_it_differs(pipe):
    chat = mmspec.Chat(pipe)
    for turn in TURNS[:2]:
        chat.say(turn, max_new_tokens=12)
    del chat.messages[2:]
    chat.messages[1]["content"] = "the the the"
    told = [*chat.messages, {"role": "user", "content": TURNS[2]}]
    fresh = pipe(told, max_new_tokens=12)
    assert chat.say(TURNS[2], max_new_tokens=12).tokens == fresh.tokens
    assert chat.memory.reused > 0


def test_other_weights_are_read_anew(pipe):
    chat = mmspec.Chat(pipe)
    chat.say(TURNS[0], max_new_tokens=12)
    pipe.to(torch.float32)
    told = [*chat.messages, {"role": "user", "content": TURNS[1]}]
    fresh = pipe(told, max_new_tokens=4)
    assert chat.say(TURNS[1], max_new_tokens=4).tokens == fresh.tokens
    assert chat.memory.reused == 0


def test_layers_that_run_otherwise_read_anew(pipe):
    """A hook ends rearranged layers, whose keys the model's own layers can't read."""
    pipe.to(torch.float32)
    chat = mmspec.Chat(pipe)
    chat.say(TURNS[0], max_new_tokens=12)
    told = [*chat.messages, {"role": "user", "content": TURNS[1]}]
    assert chat.say(TURNS[1], max_new_tokens=4).tokens == pipe(told, max_new_tokens=4).tokens
    assert chat.memory.reused > 0
    pipe.model.model.layers[0].mlp.register_forward_hook(lambda *a: None)
    told = [*chat.messages, {"role": "user", "content": TURNS[2]}]
    assert chat.say(TURNS[2], max_new_tokens=4).tokens == pipe(told, max_new_tokens=4).tokens
    assert chat.memory.reused == 0


def test_a_refused_turn_changes_nothing(pipe):
    chat = mmspec.Chat(pipe)
    chat.say(TURNS[0], max_new_tokens=4)
    before = [*chat.messages]
    with pytest.raises(InputError, match="max_new_tokens"):
        chat.say(TURNS[1], max_new_tokens=0)
    with pytest.raises(InputError, match="its own return_dict"):
        chat.say(TURNS[1], max_new_tokens=4, return_dict=False)
    assert chat.messages == before
    with pytest.raises(InputError, match="a conversation has one"):
        pipe(TURNS, memory=chat.memory)


def test_without_a_chat_template():
    words = texts.tokenizer(chat=False)
    with pytest.raises(InputError, match="has no chat template"):
        mmspec.Chat(mmspec.TextPipeline(texts.model(words), words))
