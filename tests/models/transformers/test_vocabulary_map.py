"""Tokens of one tokenizer in those of another: by the bytes that they stand for."""

from __future__ import annotations

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models
from tokenizers_of_two_kinds import TEXT, byte_level, sentence_piece
from transformers import PreTrainedTokenizerFast

from mmspec.errors import InputError
from mmspec.models.transformers.vocabulary_map import (
    VocabularyMap,
    same_words,
    vocabulary_map,
)

KINDS = {
    "byte-level": byte_level(420),
    "smaller": byte_level(300, "</s>"),
    "sentence-piece": sentence_piece(120),
}


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("drafter", KINDS)
def test_what_is_spelled_says_the_same(target, drafter):
    """Every token, also a part of a letter, decodes to the same bytes in the other's tokens."""
    one, other = KINDS[target], KINDS[drafter]
    words = VocabularyMap(one, other, len(one), len(other))
    for text in TEXT[:4]:
        ids = one(text, add_special_tokens=False)["input_ids"]
        own = [piece for token in ids for piece in words.spelled(token)]
        assert other.decode(own).strip() == one.decode(ids).strip() == text.strip()


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("drafter", KINDS)
def test_shared_tokens_are_those_of_the_same_bytes(target, drafter):
    one, other = KINDS[target], KINDS[drafter]
    words = VocabularyMap(one, other, len(one), len(other))
    target_ids, drafter_ids = (ids.tolist() for ids in words.shared)
    assert len(set(target_ids)) == len(target_ids)
    assert len(set(drafter_ids)) == len(drafter_ids)
    pairs = dict(zip(target_ids, drafter_ids, strict=True))
    assert pairs.pop(one.eos_token_id) == other.eos_token_id
    assert len(pairs) > 20
    for token, own in pairs.items():
        assert words.spelled(token) == (own,)
        texts = [t.convert_ids_to_tokens(i) for t, i in ((one, token), (other, own))]
        signs = {text.replace("Ġ", " ").replace("▁", " ") for text in texts}
        if len(signs) > 1:  # a byte to fall back on, where texts have no other token for it
            (name,) = (text for text in texts if text.startswith("<0x"))
            letter = chr(int(name[3:5], 16)).replace(" ", "▁")
            assert letter not in KINDS["sentence-piece"].get_vocab()


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("drafter", KINDS)
def test_runs_are_tokens_of_both_that_spell_another(target, drafter):
    one, other = KINDS[target], KINDS[drafter]
    words = VocabularyMap(one, other, len(one), len(other))
    shared = dict(zip(*(ids.tolist() for ids in words.shared), strict=True))
    found = {token: words.run(token) for token in range(len(one) + 2)}
    for token, run in found.items():
        if token in shared or token in one.all_special_ids or token >= len(one):
            assert run == ()
        elif run:
            assert len(run) > 1
            assert tuple(shared[each] for each in run) == words.spelled(token)
            assert one.decode(run) == one.decode([token])
    assert target != "byte-level" or drafter == target or any(found.values())


def test_letters_are_shared_as_texts_have_them():
    """Not as bytes to fall back on, which come first in such vocabularies."""
    one, other = KINDS["byte-level"], KINDS["sentence-piece"]
    for first, second in ((one, other), (other, one), (other, other)):
        words = VocabularyMap(first, second, len(first), len(second))
        for letter in "atr":
            (token,) = first.convert_tokens_to_ids([letter])
            assert words.spelled(token) == (second.convert_tokens_to_ids(letter),)
            assert token in words.shared[0]


def test_special_tokens_are_shared_by_name():
    one, other = byte_level(300, "<|end|>"), byte_level(420, "<|end|>")
    for words_ in (one, other):
        words_.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    one.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|tool|>"]})
    words = VocabularyMap(one, other, len(one), len(other))
    name = "<|user|>"
    user, own = (words_.convert_tokens_to_ids(name) for words_ in (one, other))
    assert words.spelled(user) == (own,)
    tool = one.convert_tokens_to_ids("<|tool|>")
    assert other.decode(list(words.spelled(tool))) == "<|tool|>"
    ids = torch.tensor([[user, *one("a star")["input_ids"], tool, *one("red")["input_ids"]]])
    told = words.retold(ids, None)["input_ids"][0].tolist()
    assert told[0] == own
    assert other.decode(told) == "<|user|>a starred"  # one that it lacks is left out


def test_models_of_fewer_rows_than_words():
    """Tokens beyond a model's laws are neither shared nor read."""
    one, other = KINDS["byte-level"], KINDS["smaller"]
    words = VocabularyMap(one, other, 300, 280)
    assert int(words.shared[0].max()) < 300
    assert int(words.shared[1].max()) < 280
    logits = torch.zeros(1, 280)
    assert words.widened(logits).shape == (1, 300)
    ids = one(" ".join(TEXT))["input_ids"]
    assert max(piece for token in ids for piece in words.spelled(token)) < 280
    assert int(words.retold(torch.tensor([ids]), None)["input_ids"].max()) < 280


def test_added_tokens_of_spaces():
    """As Gemma's: two signs of a space are two spaces."""
    one, other = sentence_piece(120), KINDS["byte-level"]
    one.add_tokens([AddedToken("▁▁", normalized=False, special=False)])
    words = VocabularyMap(one, other, len(one), len(other))
    (two,) = one.convert_tokens_to_ids(["▁▁"])
    assert other.decode(list(words.spelled(two))) == "  "


def test_a_map_is_made_once():
    one, other = KINDS["byte-level"], KINDS["smaller"]
    sizes = len(one), len(other)
    made = vocabulary_map(one, other, *sizes)
    assert vocabulary_map(one, other, *sizes) is made
    assert vocabulary_map(one, other, len(one) + 1, len(other)) is not made


def test_laws_are_over_the_targets_tokens():
    one, other = KINDS["byte-level"], KINDS["sentence-piece"]
    words = VocabularyMap(one, other, len(one) + 5, len(other))
    logits = torch.randn(2, 3, len(other), generator=torch.Generator().manual_seed(0))
    wide = words.widened(logits)
    assert wide.shape == (2, 3, len(one) + 5)
    target_ids, drafter_ids = words.shared
    assert torch.equal(wide[..., target_ids], logits[..., drafter_ids])
    rest = torch.ones(len(one) + 5, dtype=torch.bool)
    rest[target_ids] = False
    assert rest.any()
    assert bool((wide[..., rest] == -torch.inf).all())


def test_prompts_are_told_in_its_own_tokens():
    one, other = KINDS["byte-level"], KINDS["sentence-piece"]
    words = VocabularyMap(one, other, len(one), len(other))
    end = one.eos_token_id
    rows = [[end, *one("the red star")["input_ids"]], one("a ring")["input_ids"], [end]]
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    told = words.retold(ids, mask)
    texts = [
        other.decode(row[keep.bool()], skip_special_tokens=True).strip()
        for row, keep in zip(told["input_ids"], told["attention_mask"], strict=True)
    ]
    assert texts == ["the red star", "a ring", ""]
    assert bool((told["attention_mask"][:, 1:] >= told["attention_mask"][:, :-1]).all())
    assert told["attention_mask"].sum(1).min() == 1  # an empty prompt has a first token


def test_same_words():
    """More of them behind are the same, too."""
    one, more = byte_level(300, "</s>"), byte_level(300, "</s>")
    more.add_tokens(["<think>"])
    assert same_words(one, more)
    assert same_words(more, one)
    assert not same_words(KINDS["smaller"], KINDS["byte-level"])


def test_tokenizers_of_other_kinds_are_refused():
    made = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    words = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="a")
    with pytest.raises(InputError, match="neither byte-level BPE nor of SentencePiece's kinds"):
        VocabularyMap(KINDS["smaller"], words, 300, 2)

    class Slow:
        pass

    with pytest.raises(InputError, match="Slow does not say what bytes its tokens stand for"):
        VocabularyMap(Slow(), KINDS["smaller"], 300, 300)
