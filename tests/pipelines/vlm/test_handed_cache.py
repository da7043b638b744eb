"""`past_key_values` that a caller hands in, against transformers' own loop over several turns."""

from __future__ import annotations

import pytest
import torch
from knobs import with_knobs
from transformers import DynamicCache, StaticCache

from mmspec import disable_speculation, enable_speculation
from mmspec.errors import InputError
from mmspec.models.transformers.cache_view import CACHE_NAMES
from mmspec.models.transformers.rearranged import halved, side_by_side
from mmspec.models.transformers.tiny import tiny

NEW = 9
TURNS = [[3, 9, 4, 9, 5], [7, 8], [6, 5, 5]]
METHODS = ["plain", "prompt-lookup", "sjd", "draft", "dynamic-tree"]
KINDS = ["llama", "gpt_neox", "deepseek_v3"]  # rearranged in float32, partly turned, two widths


def cache_of(model) -> DynamicCache:
    return DynamicCache(config=model.config)


def talked(model, cache) -> tuple[list[int], DynamicCache]:
    """Three turns that share a cache."""
    text: list[int] = []
    for turn in TURNS:
        ids = torch.tensor([[*text, *turn]])
        asked = {CACHE_NAMES[0]: cache, "max_new_tokens": NEW, "do_sample": False}
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), return_dict_in_generate=True, **asked
        )
        text = out.sequences[0].tolist()
        assert out[CACHE_NAMES[0]] is cache
        assert cache.get_seq_length() == len(text) - 1
    return text, cache


def held(cache) -> list[torch.Tensor]:
    return [x for layer in cache.layers for x in (layer.keys, layer.values)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_turns_and_what_the_cache_holds(method, kind, dtype):
    model = tiny(kind, dtype)
    model.generation_config.eos_token_id = None
    drafter = tiny(kind, dtype, num_hidden_layers=1)
    theirs, expected = talked(model, cache_of(model))
    config = with_knobs(method, "vlm")
    enable_speculation(model, config, drafter if "drafter" in config.resolve("vlm").needs else None)
    ours, cache = talked(model, cache_of(model))
    read = model.speculation_stats
    disable_speculation(model)
    assert ours == theirs
    close = 1e-3 if dtype == torch.float32 else 1e-8
    for mine, other in zip(held(cache), held(expected), strict=True):
        assert torch.allclose(mine, other, atol=close)
    # transformers goes on from what we left
    ids = torch.tensor([[*ours, 4, 9]])
    more = {name: {CACHE_NAMES[0]: c} for name, c in (("ours", cache), ("theirs", expected))}
    ends = [
        model.generate(ids, max_new_tokens=4, do_sample=False, **given).tolist()
        for given in more.values()
    ]
    assert ends[0] == ends[1]
    assert read.emitted == [NEW]


def test_a_cache_is_left_where_none_was_given():
    """The usual loop: the last output's cache is handed to the next call."""
    model = tiny("llama", torch.float64)
    model.generation_config.eos_token_id = None
    theirs, _ = talked(model, cache_of(model))
    enable_speculation(model, "sjd")
    text, cache = [], None
    for turn in TURNS:
        given = {} if cache is None else {CACHE_NAMES[0]: cache}
        ids = torch.tensor([[*text, *turn]])
        out = model.generate(ids, max_new_tokens=NEW, return_dict_in_generate=True, **given)
        text, cache = out.sequences[0].tolist(), out[CACHE_NAMES[0]]
        assert cache.get_seq_length() == len(text) - 1
    assert text == theirs
    out = model.generate(ids, max_new_tokens=2, return_dict_in_generate=True, use_cache=False)
    assert CACHE_NAMES[0] not in out


BATCH = [[3, 9, 4, 9, 5], [7, 8], [6]]  # prompts of a first turn, to be padded


def chatted(model, blank: int, ends: int | None = None) -> tuple[list, list[torch.Tensor]]:
    """Two turns of a batch that share the cache that the first one leaves, and what it holds."""
    width = blank + max(map(len, BATCH))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in BATCH])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in BATCH])
    asked = {"do_sample": False, "return_dict_in_generate": True, "pad_token_id": 2}
    first = model.generate(ids, attention_mask=mask, max_new_tokens=NEW, **asked, eos_token_id=ends)
    cache, text = first[CACHE_NAMES[0]], first.sequences
    known = cache.get_seq_length()
    text = torch.cat([text, torch.tensor([[4, 9, 6]] * len(BATCH))], dim=1)
    mask = torch.cat([mask, torch.ones(len(BATCH), text.shape[1] - width).long()], dim=1)
    more = (
        {}
        if ends is not None and not hasattr(model, "speculation_stats")
        else {CACHE_NAMES[0]: cache}
    )
    second = model.generate(text, attention_mask=mask, max_new_tokens=NEW, **asked, **more)
    shown = mask[:, :known].bool()[:, None, :, None]
    return second.sequences.tolist(), [x[:, :, :known] * shown for x in held(cache)]


@pytest.mark.parametrize("method", ["plain", "prompt-lookup", "dynamic-tree"])
@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize("kind", ["llama", "deepseek_v3"])
def test_a_batch_s_turns(kind, method, blank):
    """Left-padded rows, also with columns that are padding in all of them."""
    model, drafter = tiny(kind, torch.float64), tiny(kind, torch.float64, num_hidden_layers=1)
    model.generation_config.eos_token_id = None
    theirs, expected = chatted(model, blank)
    config = with_knobs(method, "vlm")
    enable_speculation(model, config, drafter if "drafter" in config.resolve("vlm").needs else None)
    ours, found = chatted(model, blank)
    assert ours == theirs
    for mine, other in zip(found, expected, strict=True):
        assert torch.allclose(mine, other, atol=1e-8)


def test_rows_that_end_at_unequal_lengths():
    """The cache that they leave is as long as the shortest; the rest is read again, for all.

    What fills rows up is text to the next turn. transformers reads all of it anew here: its own
    cache holds what it has read of that padding.
    """
    model = tiny("llama", torch.float64)
    model.generation_config.eos_token_id = None
    rows = [model.generate(torch.tensor([row]), max_new_tokens=NEW) for row in BATCH]
    ends = int(rows[0][0, len(BATCH[0]) + 2])
    assert (
        len(
            {
                row[0, len(p) :].tolist().index(ends) if ends in row[0, len(p) :] else NEW
                for row, p in zip(rows, BATCH, strict=True)
            }
        )
        > 1
    )
    theirs, _ = chatted(model, 0, ends)
    enable_speculation(model, "prompt-lookup")
    ours, _ = chatted(model, 0, ends)
    assert ours == theirs


def test_what_is_known_is_not_read_again():
    """A cache of another text shows in the answer: nobody has read the prompt itself."""
    model = tiny("llama", torch.float64)
    model.generation_config.eos_token_id = None
    enable_speculation(model, "sjd")
    other = cache_of(model)
    model.generate(torch.tensor([[9, 9, 4, 5]]), max_new_tokens=4, **{CACHE_NAMES[0]: other})
    ids = torch.tensor([[3, 9, 4, 9, 5, 7, 7, 8, 6]])
    fooled = model.generate(ids, max_new_tokens=NEW, **{CACHE_NAMES[0]: other})
    assert not torch.equal(fooled, model.generate(ids, max_new_tokens=NEW))


def test_it_has_two_names():
    """transformers calls it `cache` since 5.24, and `past_key_values` before."""
    model = tiny("llama", torch.float64)
    model.generation_config.eos_token_id = None
    enable_speculation(model, "sjd")
    ids, found = torch.tensor([[3, 9, 4, 9, 5]]), []
    for name in ("cache", "past_key_values"):
        cache = cache_of(model)
        found.append(model.generate(ids, max_new_tokens=NEW, do_sample=False, **{name: cache}))
        assert cache.get_seq_length() == len(found[-1][0]) - 1
    assert torch.equal(*found)


def test_pairs_side_by_side_and_back():
    x = torch.arange(24.0).view(2, 3, 4)
    assert side_by_side(x)[0, 0].tolist() == [0, 2, 1, 3]
    assert torch.equal(halved(side_by_side(x)), x)


def test_what_it_does_not_take():
    model = tiny("llama")
    enable_speculation(model, "sjd")

    def refused(match: str, rows: int = 1, **asked) -> None:
        ids = () if "inputs_embeds" in asked else (torch.tensor([[3, 4, 5]] * rows),)
        with pytest.raises(InputError, match=match):
            model.generate(*ids, max_new_tokens=2, **asked)

    name = CACHE_NAMES[0]
    refused("beside use_cache=False", use_cache=False, **{name: cache_of(model)})
    refused("of the class StaticCache", **{name: StaticCache(model.config, max_cache_len=8)})
    refused("of the class str", **{name: "theirs"})
    known = cache_of(model)
    model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=4, **{name: known})
    refused("of 6 tokens for a prompt of 3: give the whole conversation", **{name: known})
    longer = torch.tensor([[3, 4, 5, 6, 7, 8, 9]] * 2)
    for called in CACHE_NAMES[:2]:  # the word that the caller used
        with pytest.raises(InputError, match=f"honour {called} of 1 rows for 2 prompts"):
            model.generate(longer, max_new_tokens=2, **{called: known})
    refused(
        "cache and past_key_values are one argument by two names",
        **{called: cache_of(model) for called in CACHE_NAMES[:2]},
    )
    refused("as inputs_embeds", inputs_embeds=torch.zeros(1, 3, 32), **{name: cache_of(model)})
    refused("cache under guidance", guidance_scale=2.0, **{name: cache_of(model)})
    enable_speculation(model, "drafter-only", tiny("llama", num_hidden_layers=1))
    refused("where the drafter answers", **{name: cache_of(model)})


@pytest.mark.parametrize("kind", ["mistral", "gemma2"])
def test_windows_are_refused_however_the_cache_is_made(kind):
    model = tiny(kind)
    enable_speculation(model, "sjd")
    for cache in (cache_of(model), DynamicCache()):
        with pytest.raises(InputError, match=r"layers have windows|not all of full attention"):
            model.generate(torch.tensor([[3, 4]]), max_new_tokens=2, **{CACHE_NAMES[0]: cache})
