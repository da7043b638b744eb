"""An answer told token by token is the whole answer, cut where transformers-like stops cut it."""

from __future__ import annotations

import numpy as np
import pytest
from processors import tokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from mmspec.serve.running_text import RunningText


def whole(tokens, words, stops=(), ends=(), limit=99) -> tuple[str, str]:
    """The oracle: the shortest beginning that is over, decoded at once."""
    for count in range(1, len(tokens) + 1):
        text = words.decode(tokens[:count], skip_special_tokens=True)
        places = [text.find(stop) for stop in stops if stop in text]
        if tokens[count - 1] in ends:
            return text[: min(places, default=len(text))], "stop"
        if places:
            return text[: min(places)], "stop"
        if count == limit:
            return text, "length"
    return text, "stop"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("stops", [(), ("aba", "b b"), ("éa", "bbbb", "a")])
def test_pieces_make_the_whole(seed, stops):
    words = tokenizer(adds_start=False)
    chance = np.random.default_rng(seed)
    text = "".join(chance.choice(list("abé "), 30))  # é has two bytes, a token each
    tokens = words(text, add_special_tokens=False)["input_ids"]
    limit = int(chance.integers(5, 40))
    line = RunningText(words, limit, (), stops)
    told, rest = "", tokens
    while rest:
        count = int(chance.integers(1, 5))
        news, rest = line.add(rest[:count]), rest[count:]
        told += news
        assert line.finish or "\N{REPLACEMENT CHARACTER}" not in told
    told += line.close()
    assert (told, line.finish) == whole(tokens, words, stops, limit=limit)


def test_nothing_of_a_stop_string_is_told_before_it_is_known():
    words = tokenizer(adds_start=False)
    ids = words("xay", add_special_tokens=False)["input_ids"]
    line = RunningText(words, 9, (), ("ay!",))
    pieces = [line.add([token]) for token in ids]
    assert "".join(pieces) == "x"
    assert line.close() == "ay"


def test_an_end_token_ends_it_and_what_follows_is_nobodys():
    words = tokenizer(adds_start=False)
    a, b = words("ab", add_special_tokens=False)["input_ids"]
    line = RunningText(words, 9, (b,))
    line.add([a, b, a, a])
    assert (line.tokens, line.finish) == ([a, b], "stop")


def test_a_tokenizer_that_cleans_up_loses_nothing():
    """A blank that is told can't be taken back."""
    ids = {"say": 0, "'": 1, "yes": 2, "[UNK]": 3}
    raw = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    words = PreTrainedTokenizerFast(tokenizer_object=raw, clean_up_tokenization_spaces=True)
    line = RunningText(words, 9)
    assert "".join(line.add([token]) for token in range(3)) + line.close() == "say ' yes"
