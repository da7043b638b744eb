"""Tokens of one tokenizer in those of another: by the bytes that they stand for."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, models
from tokenizers_of_two_kinds import TEXT, byte_level, sentence_piece
from transformers import PreTrainedTokenizerFast

from mmspec.errors import InputError
from mmspec.models.transformers.vocabulary_map import VocabularyMap, same_words

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
    known = {one.convert_ids_to_tokens(token) for token in pairs}
    # the sign of a space differs, the bytes do not
    signs = [{"Ġred", "▁red"} & {*tokenizer.get_vocab()} for tokenizer in (one, other)]
    assert not all(signs) or signs[0] <= known
    if "smaller" not in (target, drafter):
        assert all(signs)
    for token, own in pairs.items():
        assert words.spelled(token) == (own,)
        texts = [t.convert_ids_to_tokens(i) for t, i in ((one, token), (other, own))]
        plain = [text.replace("Ġ", " ").replace("▁", " ") for text in texts]
        assert plain[0] == plain[1] or any(p.startswith("<0x") for p in texts)


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
    assert same_words(KINDS["smaller"], byte_level(300, "</s>"))
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
