"""`past_key_values` that a caller hands in, against transformers' own loop over several turns."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from knobs import with_knobs
from transformers import DynamicCache, StaticCache
from vlms import IMAGE, START, STOP, VIDEO, asked, shorter
from vlms import made as made_to_see

from mmspec import SpecConfig, disable_speculation, enable_speculation
from mmspec.errors import InputError
from mmspec.models.transformers.cache_view import CACHE_NAMES
from mmspec.models.transformers.rearranged import halved, side_by_side
from mmspec.models.transformers.tiny import tiny

NEW, LAYERS = 9, "num_hidden_layers"
TURNS = [[3, 9, 4, 9, 5], [7, 8], [6, 5, 5]]
METHODS = ["plain", "prompt-lookup", "sjd", "draft", "dynamic-tree"]
KINDS = ["llama", "gpt_neox", "deepseek_v3"]  # rearranged in float32, partly turned, two widths
KINDS += ["mistral", "gemma2", "gemma3_text", "gpt_oss", "bloom"]  # windows, biases for positions

SINGLE = ("bloom", "gemma2", "deepseek_v3")  # softmax, or who is asked, in float32 in any case


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


def made(kind: str, dtype=torch.float64, **sizes):
    """A tiny model; windows are shorter than a turn and its answer."""
    if kind == "gemma3_text":
        sizes["layer_types"] = ["sliding_attention", "full_attention"] * (sizes.get(LAYERS, 4) // 2)
    if LAYERS in sizes and kind in ("gemma2", "gemma3_text", "gpt_oss"):
        sizes["layer_types"] = ["sliding_attention"] * sizes[LAYERS]
    model = tiny(kind, dtype, **sizes)
    model.generation_config.eos_token_id = None
    return model


def held(cache) -> list[torch.Tensor]:
    return [x for layer in cache.layers for x in (layer.keys, layer.values)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_turns_and_what_the_cache_holds(method, kind, dtype):
    model, drafter = made(kind, dtype), made(kind, dtype, **{LAYERS: 1})
    theirs, expected = talked(model, cache_of(model))
    config = with_knobs(method, "vlm")
    enable_speculation(model, config, drafter if "drafter" in config.resolve("vlm").needs else None)
    ours, cache = talked(model, cache_of(model))
    read = model.speculation_stats
    disable_speculation(model)
    assert ours == theirs
    close = 1e-8 if dtype == torch.float64 and kind not in SINGLE else 1e-3
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
        assert torch.allclose(mine, other, atol=1e-3 if kind in SINGLE else 1e-8)


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


def with_a_turn(given: dict, text: torch.Tensor) -> dict:
    """A conversation's text and three tokens more, its pictures again."""
    more = torch.tensor([[4, 9, 6]] * len(text))
    longer = {**given, "input_ids": torch.cat([text, more], dim=1)}
    new = longer["input_ids"].shape[1] - given["input_ids"].shape[1]
    for name, filling in (("attention_mask", 1), ("token_type_ids", 0), ("mm_token_type_ids", 0)):
        if name in given:
            longer[name] = F.pad(given[name], (0, new), value=filling)
    return longer


@pytest.mark.parametrize("method", ["plain", "draft"])
@pytest.mark.parametrize("family", ["llava", "qwen2_vl", "gemma3", "paligemma"])
def test_turns_about_pictures(family, method):
    """Whether pictures are read in one direction or both, every turn is as if read anew."""
    model = made_to_see(family).double()
    small = shorter(model).double() if method == "draft" else None
    first = {n: x.double() if x.is_floating_point() else x for n, x in asked(model, [1, 2]).items()}
    how = {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True}
    how["suppress_tokens"] = [START, STOP, VIDEO, IMAGE]  # which stand for pictures
    turns = [first]
    for _ in range(3):
        turns.append(with_a_turn(turns[-1], model.generate(**turns[-1], **how).sequences))
    enable_speculation(model, method, small)
    cache = DynamicCache(config=model.config.get_text_config())
    for given, after in pairwise(turns):
        ours = model.generate(**given, **how, **{CACHE_NAMES[0]: cache}).sequences
        assert torch.equal(ours, after["input_ids"][:, :-3])
        assert cache.get_seq_length() == ours.shape[1] - 1


WINDOWED = ["mistral", "gemma3_text"]


@pytest.mark.parametrize("kind", WINDOWED)
def test_a_cache_without_windows_is_as_good(kind):
    """`DynamicCache()` keeps all tokens in layers with a window, too."""
    model = made(kind)
    theirs, _ = talked(model, DynamicCache())
    enable_speculation(model, "prompt-lookup")
    ours, cache = talked(model, DynamicCache())
    assert ours == theirs
    assert {layer.keys.shape[2] for layer in cache.layers} == {len(ours) - 1}
    # it goes on as one in which transformers has kept all
    disable_speculation(model)
    ids = torch.tensor([[*ours, 4, 9]])
    more = model.generate(ids, max_new_tokens=4, do_sample=False, **{CACHE_NAMES[0]: cache})
    assert torch.equal(more, model.generate(ids, max_new_tokens=4, do_sample=False))


def two_turns(model, new: int, ends: int | None) -> tuple[list, int]:
    """A padded batch, whose second turn goes on from the first one's cache; what that holds."""
    width = max(map(len, BATCH))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in BATCH])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in BATCH])
    asked = {"do_sample": False, "return_dict_in_generate": True, "pad_token_id": 2}
    how = {**asked, "max_new_tokens": new, "eos_token_id": ends}
    first = model.generate(ids, attention_mask=mask, **how)
    cache, known = first[CACHE_NAMES[0]], first[CACHE_NAMES[0]].get_seq_length()
    text = torch.cat([first.sequences, torch.tensor([[4, 9, 6]] * len(BATCH))], dim=1)
    mask = torch.cat([mask, torch.ones(len(BATCH), text.shape[1] - width).long()], dim=1)
    how |= {"max_new_tokens": NEW, "eos_token_id": None, CACHE_NAMES[0]: cache}
    second = model.generate(text, attention_mask=mask, **how)
    assert second[CACHE_NAMES[0]].get_seq_length() == text.shape[1] + NEW - 1
    return second.sequences.tolist(), known


def answered_alone(model, texts: list[list[int]], blanks: list[int]) -> list[list[int]]:
    """What transformers writes behind each text, which has so many columns of padding."""
    rows = []
    for text, blank in zip(texts, blanks, strict=True):
        ids = torch.tensor([text[blank:-NEW]])
        asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW}
        rows.append(model.generate(ids, **asked, do_sample=False)[0, -NEW:].tolist())
    return rows


@pytest.mark.parametrize("method", ["plain", "prompt-lookup", "dynamic-tree"])
@pytest.mark.parametrize("kind", WINDOWED)
def test_a_batch_s_turns_behind_windows(kind, method):
    """Each row as it is alone: transformers' own padded rows are not always numbers."""
    model, drafter = made(kind), made(kind, **{LAYERS: 1})
    blanks = [max(map(len, BATCH)) - len(row) for row in BATCH]
    config = with_knobs(method, "vlm")
    enable_speculation(model, config, drafter if "drafter" in config.resolve("vlm").needs else None)
    ours, known = two_turns(model, 2 * NEW, None)
    assert known == max(map(len, BATCH)) + 2 * NEW - 1
    disable_speculation(model)
    assert [row[-NEW:] for row in ours] == answered_alone(model, ours, blanks)


def test_windows_that_have_moved_on_leave_the_cache_as_it_was():
    """A row that ends at once is where the others' windows are no more: all is read again."""
    model = made("mistral")
    blanks = [max(map(len, BATCH)) - len(row) for row in BATCH]
    rows = [model.generate(torch.tensor([row]), max_new_tokens=4 * NEW)[0] for row in BATCH]
    new = [row[len(prompt) :].tolist() for row, prompt in zip(rows, BATCH, strict=True)]
    ends, lengths = min(
        ((end, [row.index(end) if end in row else 4 * NEW for row in new]) for end in set(new[0])),
        key=lambda found: min(found[1]) - max(found[1]),
    )
    assert max(lengths) - min(lengths) > 20  # more than a window and room for drafts
    enable_speculation(model, "plain")
    ours, known = two_turns(model, 4 * NEW, ends)
    assert known == 0
    disable_speculation(model)
    assert [row[-NEW:] for row in ours] == answered_alone(model, ours, blanks)


def test_a_window_that_holds_too_little_is_refused():
    model = made("mistral")
    _, cache = talked(model, cache_of(model))
    layer = cache.layers[1]
    layer.keys, layer.values = layer.keys[:, :, 1:], layer.values[:, :, 1:]
    enable_speculation(model, "sjd")
    ids = torch.ones(1, cache.get_seq_length() + 1).long()
    with pytest.raises(InputError, match=r"holds 4 of 36 tokens in layer 1, which sees more"):
        model.generate(ids, max_new_tokens=2, **{CACHE_NAMES[0]: cache})


def test_a_state_is_refused_in_a_line():
    model = tiny("qwen3_next")
    enable_speculation(model, "sjd")
    for cache in (cache_of(model), DynamicCache()):
        with pytest.raises(
            InputError, match=r"layers keep a state.* behind a draft|can't be undone"
        ):
            model.generate(torch.tensor([[3, 4]]), max_new_tokens=2, **{CACHE_NAMES[0]: cache})


def test_new_tokens_alone_are_refused():
    """A mask of all that is known and new says so; more new ones than known ones would do."""
    model = tiny("llama", torch.float64)
    model.generation_config.eos_token_id = None
    enable_speculation(model, "sjd")
    given = {CACHE_NAMES[0]: cache_of(model)}
    out = model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=3, **given)
    turn = torch.cat([out[:, -1:], torch.tensor([[7, 8, 6, 5, 5, 9]])], 1)
    mask = torch.ones(1, 12, dtype=torch.long)
    with pytest.raises(InputError, match="whole conversation"):
        model.generate(turn, attention_mask=mask, max_new_tokens=4, **given)


def test_a_compressed_prompt_that_is_as_wide_as_before_leaves_no_cache():
    """A row without a picture fills the width; another one's padding has grown."""
    model = made_to_see("llava")
    inputs = asked(model, [0, 1])
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    text = torch.arange(ids.shape[1] + 20) % 20 + 1
    inputs["input_ids"] = torch.stack([text, F.pad(ids[1], (20, 0))])
    inputs["attention_mask"] = torch.stack([torch.ones_like(text), F.pad(mask[1], (20, 0))])
    enable_speculation(model, SpecConfig("plain", target_compressor="divprune", target_keep=0.5))
    how = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True}
    assert model.generate(**inputs, **how).past_key_values is None
