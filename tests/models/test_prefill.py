"""Prompts that are read in chunks: what a call reads is bounded, and nothing else changes."""

from __future__ import annotations

import pytest
import torch

from mmspec.engine.draft import Context
from mmspec.errors import InputError
from mmspec.models.guided import GuidedDecoder
from mmspec.models.prefill import PREFILL_CHUNK, WHOLE, chunks
from mmspec.models.setting import Setting
from mmspec.models.transformers.causal import CausalDecoder
from mmspec.models.transformers.prompted import prompted
from mmspec.models.transformers.tiny import WINDOW, tiny
from mmspec.pipelines.vlm.generate import enable_speculation

ROWS, CHUNK, AHEAD = (23, 17), 4, 5
GROUPS = [[-1, 0, 0, 0, 0, 0, -1, -1, 1, 1, -1], [-1, -1, 2, 2, -1, -1, -1, -1, -1, 1, -1]]
KINDS = {
    "llama": "rotary positions",
    "bloom": "ALiBi",
    "mistral": "a sliding window",
    "gemma3_text": "windows in some layers",
    "mamba2": "states alone",
    "falcon_h1": "states beside attention",
    "mixtral": "sparse experts",
}


def test_chunks():
    assert list(chunks(0, 9, 4)) == [(0, 4), (4, 8), (8, 9)]
    assert list(chunks(3, 9, 4)) == [(3, 7), (7, 9)]
    assert list(chunks(0, 9, PREFILL_CHUNK)) == [(0, 9)]
    assert list(chunks(5, 5, 4)) == []


def test_no_chunk_cuts_a_group():
    """Of any row; the first group is longer than a chunk, and is read whole."""
    groups = torch.tensor(GROUPS)
    assert list(chunks(0, 11, 4, groups)) == [(0, 1), (1, 6), (6, 10), (10, 11)]
    assert list(chunks(0, 11, 2, groups)) == [(0, 1), (1, 6), (6, 8), (8, 10), (10, 11)]
    assert list(chunks(0, 11, 99, groups)) == [(0, 11)]


@torch.inference_mode()
def read(model, chunk: int, groups: torch.Tensor | None = None, drafts: bool = False):
    """Logits of some tokens behind a ragged prompt, its hidden states, and the calls' sizes."""
    decoder = prompted(model)
    generator = torch.Generator().manual_seed(0)
    width = max(ROWS) if groups is None else groups.shape[1]
    rows = ROWS if groups is None else (width, width)
    ids = torch.randint(3, 36, (2, width + AHEAD), generator=generator)
    mask = torch.arange(width) >= width - torch.tensor(rows)[:, None]
    prompt = decoder.prompt(ids[:, :width], mask, limit=AHEAD)
    decoder.place(prompt)
    setting = Setting(prompt.embedded, mask, None, lambda logits: logits, AHEAD, 0, 4)
    guided = GuidedDecoder(decoder, setting._replace(both_ways=groups, prefill_chunk=chunk))
    guided.watch(prefix=WHOLE)
    guided.drafts = drafts
    sizes, forward = [], decoder.forward

    def noted(x, rotary, cache, slots, length, mask, head=True, use=None):
        sizes.append((x.shape[1], mask.numel(), head))
        return forward(x, rotary, cache, slots, length, mask, head, use)

    decoder.forward = noted
    guided.start(2)
    states, calls = guided.hidden, list(sizes)
    decoder.forward = forward
    first = guided.extend(ids[:, width : width + 2], [-1, -1])
    then = guided.extend(ids[:, width + 2 :], [1, 1])
    return torch.cat([first, then], 1), states, mask, calls


def agree(one, other, close=1e-4) -> bool:
    """Compare logits, and hidden states of what is no padding."""
    real = one[2][:, :-1, None]
    return torch.allclose(one[0], other[0], atol=close) and torch.allclose(
        one[1] * real, other[1] * real, atol=close
    )


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_change_nothing_and_bound_a_call(kind):
    model = tiny(kind)
    whole, parts = read(model, PREFILL_CHUNK), read(model, CHUNK)
    assert whole[1].shape == parts[1].shape == (2, max(ROWS) - 1, 32)
    assert agree(whole, parts)
    assert [n for n, *_ in whole[3]] == [max(ROWS) - 1]
    assert [n for n, *_ in parts[3]] == [CHUNK] * 5 + [2]
    # of keys there are as many as columns, of queries a chunk; no column has logits
    assert max(size for _, size, _ in parts[3]) <= 2 * CHUNK * max(ROWS)
    assert not any(head for *_, head in parts[3])
    assert max(ROWS) > 2 * WINDOW


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_read_apart_read_no_padding_and_say_the_same(kind, monkeypatch):
    """Hidden states, too; as it is where a call costs less than what it spares."""
    model = tiny(kind)
    together = read(model, PREFILL_CHUNK)
    monkeypatch.setattr("mmspec.models.prefill._WEIGHTS", {"cpu": 0})
    apart = read(model, PREFILL_CHUNK)
    assert agree(together, apart)
    assert [n for n, *_ in apart[3]] == [max(ROWS) - 1, min(ROWS) - 1]
    both = read(model, CHUNK)
    assert agree(together, both)
    assert sum(n for n, *_ in both[3]) == sum(ROWS) - 2


@torch.inference_mode()
def laws(kind: str, chunk: int, how: str) -> torch.Tensor:
    """Laws behind two samples' prompts of one length, read as `how` says."""
    decoder = prompted(tiny(kind))
    generator = torch.Generator().manual_seed(0)
    rows, width = 4 if how == "guided" else 2, max(ROWS)
    ids = torch.randint(3, 36, (rows, width + AHEAD), generator=generator)
    mask = torch.ones(rows, width, dtype=torch.bool)
    prompt = decoder.prompt(ids[:, :width], mask, limit=AHEAD)
    decoder.place(prompt)
    scale = 2.0 if how == "guided" else None
    setting = Setting(prompt.embedded, mask, scale, lambda x: x, AHEAD, 0, 4, prefill_chunk=chunk)
    model = GuidedDecoder(decoder, setting)
    if how == "earlier":
        other = GuidedDecoder(decoder, setting)
        other.start(2)
        model.earlier = other.cache, CHUNK + 1
    model.start(2)
    if how == "seated":
        context = Context.empty(2, AHEAD)
        context.samples = [0, 0]
        model.seat(context, [1])
    return model.extend(ids[:1, width:].repeat(2, 1), [-1, -1])


@pytest.mark.parametrize("how", ["guided", "seated", "earlier"])
@pytest.mark.parametrize("kind", ["llama", "mistral", "falcon_h1"])
def test_chunks_of_guided_rows_seated_ones_and_what_is_left_to_read(kind, how):
    whole, parts = (laws(kind, chunk, how) for chunk in (PREFILL_CHUNK, CHUNK))
    assert torch.allclose(whole, parts, atol=1e-4)
    if how == "seated":  # the first sample, in the second row as well
        assert torch.allclose(parts[0], parts[1], atol=1e-4)
    if how == "earlier":
        assert torch.allclose(parts, laws(kind, PREFILL_CHUNK, "alone"), atol=1e-4)


@torch.inference_mode()
def left(columns: int, chunk: int, seated: bool, groups: torch.Tensor | None = None):
    """Hidden states that the prefix of ragged rows leaves; of the second row alone if `seated`."""
    decoder, width = CausalDecoder(tiny("llama")), 11
    ids = torch.randint(3, 36, (2, width), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(width) >= torch.tensor([[0], [2]])
    setting = Setting(decoder.embed(ids), mask, None, lambda x: x, AHEAD, 0, 4, both_ways=groups)
    model = GuidedDecoder(decoder, setting._replace(prefill_chunk=chunk))
    model.watch(prefix=columns)
    model.watch()  # whoever asks for less takes nothing away
    model.start(2)
    if seated:
        context = Context.empty(2, AHEAD)
        context.samples = [0, 1]
        model.seat(context, [1])
    return model.hidden


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("seated", [False, True])
def test_states_that_are_read_are_left_and_no_others(seated, grouped):
    """They hold the memory of their own columns alone, not that of the calls that made them."""
    groups = torch.tensor(GROUPS) if grouped else None
    whole = left(WHOLE, PREFILL_CHUNK, seated, groups)
    assert whole.shape == (2, 10, 32)
    for chunk in (PREFILL_CHUNK, CHUNK, 3):
        assert left(0, chunk, seated, groups) is None
        for columns in (1, 2, 5, 10, 99):
            some = left(columns, chunk, seated, groups)
            assert some.shape[1] == min(columns, 10)
            assert torch.allclose(some, whole[:, -columns:], atol=1e-5)
            assert some.untyped_storage().nbytes() == some.nbytes
    assert bool(whole[0].any()) is not seated


@torch.inference_mode()
def test_states_of_the_prefix_go_with_the_next_call():
    """Drafters have read them by then; a start without a column to read leaves none either."""
    decoder = CausalDecoder(tiny("llama"))
    prefix, mask = decoder.embed(torch.tensor([[3, 4, 5]])), torch.ones(1, 3).bool()
    setting = Setting(prefix, mask, None, lambda x: x, AHEAD, 0, 4)
    model = GuidedDecoder(decoder, setting)
    model.prefix_states = WHOLE
    model.start(1)
    assert model.hidden.shape == (1, 2, 32)
    model.extend(torch.tensor([[0]]), [-1])
    assert model.hidden is None
    model.start(1)
    assert model.hidden is not None
    model.earlier = model.cache, 2
    model.start(1)
    assert model.hidden is None


@pytest.mark.parametrize(
    ("method", "states"),
    [("plain", 0), ("prompt-lookup", 0), ("draft", 0), ("token-recycling", 19)],
)
def test_methods_that_read_no_states_have_none(method, states, monkeypatch):
    """Neither of the target's prompt nor of the draft model's."""
    found, made = [], GuidedDecoder.start

    def start(self, rows):
        made(self, rows)
        found.append(0 if self.hidden is None else self.hidden.shape[1])

    monkeypatch.setattr(GuidedDecoder, "start", start)
    ids = torch.randint(3, 36, (1, 20), generator=torch.Generator().manual_seed(0))
    model = tiny("llama", torch.float64)
    drafter = {"drafter": tiny("llama", torch.float64)} if method == "draft" else {}
    enable_speculation(model, method, **drafter)
    model.generate(ids, max_new_tokens=4, prefill_chunk_size=CHUNK)
    assert max(found) == states


@pytest.mark.parametrize("kind", ["llama", "mistral", "falcon_h1"])
def test_a_draft_model_reads_in_chunks_too(kind):
    model = tiny(kind)
    assert agree(read(model, PREFILL_CHUNK, drafts=True), read(model, CHUNK, drafts=True))


def test_groups_are_read_whole():
    model, groups = tiny("llama"), torch.tensor(GROUPS)
    whole, parts = read(model, PREFILL_CHUNK, groups), read(model, CHUNK, groups)
    assert agree(whole, parts)
    assert not torch.allclose(parts[0], read(model, CHUNK, groups * 0 - 1)[0], atol=1e-4)
    assert [n for n, *_ in parts[3]] == [1, 5, 4, 1]


@pytest.mark.parametrize("method", ["prompt-lookup", "token-recycling"])
def test_generate_takes_a_size(method, monkeypatch):
    """The second learns from what follows every token of the prompt."""
    reads, made = [], GuidedDecoder.start

    def start(self, rows):
        made(self, rows)
        reads.append(self.setting.prefill_chunk)

    monkeypatch.setattr(GuidedDecoder, "start", start)
    ids = torch.randint(3, 36, (1, 20), generator=torch.Generator().manual_seed(0))
    out = []
    for size in (None, CHUNK):
        model = tiny("llama", torch.float64)  # of its own: tables live on
        enable_speculation(model, method)
        out.append(model.generate(ids, max_new_tokens=12, prefill_chunk_size=size))
        out.append(model.speculation_stats.accepted)
        assert reads[-1] == (size or PREFILL_CHUNK)
    assert torch.equal(out[0], out[2])
    assert out[1] == out[3]
    with pytest.raises(InputError, match="prefill_chunk_size must be 1 or more, not 0"):
        model.generate(ids, max_new_tokens=2, prefill_chunk_size=0)
