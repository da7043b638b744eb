"""Stop strings in decoded text; the oracle is transformers' criterion where a vocabulary allows."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from processors import tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.generation import StopStringCriteria

from mmspec.errors import InputError
from mmspec.pipelines.stopping import Stops, StopStrings, StopText, WritesOn, cut


def context(base: list[int], tokens: torch.Tensor) -> SimpleNamespace:
    return SimpleNamespace(base=base, tokens=tokens, samples=None)


def first(words, strings, prompt, done, more) -> list[int]:
    stop = StopStrings(StopText(words, strings), torch.tensor(prompt))
    where = context([len(done[0])] * len(done), torch.tensor(done))
    return stop(where, torch.tensor(more), torch.full((len(more),), len(more[0]))).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_rows_end_where_transformers_would_end_them(seed):
    """Random letters by any cut into prompt, output and round."""
    words = tokenizer(adds_start=False)
    letters = np.array(words("abé ", add_special_tokens=False)["input_ids"])
    chance = np.random.default_rng(seed)
    ids = torch.tensor(letters[chance.integers(0, len(letters), (6, 40))])
    strings = ["aba", "b b", "éa", "bbbb"]
    criterion = StopStringCriteria(words, strings)
    ends = torch.stack([criterion(ids[:, : n + 1], None) for n in range(40)], 1)
    assert ends.any()
    for prompt, done, width in ((0, 0, 40), (5, 0, 9), (3, 20, 5), (12, 27, 1)):
        start = prompt + done
        found = first(words, strings, *(ids[:, a:b].tolist() for a, b in (
            (0, prompt), (prompt, start), (start, start + width)
        )))  # fmt: skip
        for row, count in enumerate(found):
            positions = ends[row, start : start + width].nonzero()[:, 0].tolist()
            assert count == (positions[0] + 1 if positions else width + 1)


def words_with(pieces: list[str], decoder=None) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models

    core = Tokenizer(models.WordLevel({piece: n for n, piece in enumerate(pieces)}, unk_token="?"))
    if decoder is not None:
        core.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="?")


def test_a_string_may_end_within_a_token_and_begin_in_the_prompt():
    from tokenizers import decoders

    words = words_with(["?", "▁so", "▁the", "▁answer:", "▁red", "▁blue"], decoders.Metaspace())
    assert first(words, "answer", [[1, 2]], [[4]], [[5, 3, 4]]) == [2]
    assert first(words, "e answ", [[1, 2]], [[]], [[3, 4]]) == [1]
    assert first(words, "so the", [[1, 2]], [[]], [[3, 4]]) == [3]  # whole in the prompt: no end
    assert first(words, ["red blue", "the red"], [[1]], [[2]], [[5, 4, 5]]) == [3]


def test_any_vocabulary_will_do():
    """One that transformers' criterion refuses: it can't spell what that looks behind."""
    words = words_with(["?", "red", "blue", "circle"])
    with pytest.raises(ValueError, match="not found"):
        StopStringCriteria(words, "blue")
    assert first(words, "blue", [[1]], [[1]], [[3, 2, 1]]) == [2]
    assert first(words, "d c", [[1]], [[1]], [[3, 2, 1]]) == [1]
    assert first(words, "green", [[1]], [[1]], [[3, 2, 1]]) == [4]


def test_rows_have_their_own_ends_and_filling_behind_them_is_nobodys():
    words = words_with(["?", "red", "blue"])
    stop = StopStrings(StopText(words, "red blue"), torch.tensor([[1], [2]]))
    tokens = torch.tensor([[1, 0, 0], [2, 2, 1]])  # of the first row one is output
    more = torch.tensor([[2, 2], [2, 1]])
    real = torch.tensor([2, 2])
    assert stop(context([1, 3], tokens), more, real).tolist() == [1, 1]
    assert stop(context([0, 0], tokens), more, real).tolist() == [1, 3]
    assert stop(context([0, 0], tokens), more, real - 1).tolist() == [1, 2]


@pytest.mark.parametrize("strings", ["", [], ["a", ""], [3], 3])
def test_what_is_no_string_is_refused(strings):
    with pytest.raises(InputError, match="stop strings must be text that is not empty"):
        StopText(words_with(["?"]), strings)


def test_a_length_that_nobody_gives():
    with pytest.raises(InputError, match="no end; give max_new_tokens"):
        Stops.of([])


def test_rows_of_a_pipeline_end_by_themselves():
    """In `generate` they write on where there is no end token; it has rows of one length."""
    words, prompt = words_with(["?", "red", "blue"]), torch.zeros(2, 3).long()
    for alone, eos, rows in ((True, (), 2), (False, (2,), 2), (False, (), 1)):
        stops = Stops(9, eos, text=StopText(words, "red", alone))
        assert isinstance(stops.looking(prompt[:rows]), StopStrings)
    assert isinstance(Stops(9, text=StopText(words, "red")).looking(prompt), WritesOn)
    assert Stops(9).looking(prompt) is None


def test_rows_write_on_until_each_was_over():
    """Those that were faster have written more by then, and that is cut."""

    def over(where, emitted, counts):
        hits = (emitted == 7) & (torch.arange(3) < counts[:, None])
        return torch.where(hits.any(1), hits.long().argmax(1) + 1, counts + 1)

    stop = WritesOn(over, 2)
    where = SimpleNamespace(base=[0, 0], finished=[False] * 2, lengths=torch.zeros(2).long())
    counts = torch.tensor([3, 1])
    assert stop(where, torch.tensor([[1, 7, 1], [1, 0, 0]]), counts).tolist() == [4, 2]
    assert stop.width is None
    stats = SimpleNamespace(emitted=[4, 3], accepted=[2, 0])
    cut(where, stop, stats)
    assert where.base == [0, 0]
    where.base = [3, 1]
    assert stop(where, torch.tensor([[7, 1, 1], [1, 7, 1]]), torch.tensor([3, 3])).tolist() == [
        1,
        2,
    ]
    assert stop.width == 3
    where.base, where.lengths = [4, 3], torch.tensor([4, 3])
    cut(where, stop, stats)
    assert (where.base, where.lengths.tolist()) == ([3, 3], [3, 3])
    assert (stats.emitted, stats.accepted) == ([3, 3], [2, 0])
