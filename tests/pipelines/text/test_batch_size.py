"""Prompts that wait until another's answer is done: answers are those of all prompts at once."""

from __future__ import annotations

import pytest
import texts
import torch
from toy_vlm import tiny_head
from transformers import TextStreamer

import mmspec
from mmspec import InputError, SpecConfig
from mmspec.methods import serving
from mmspec.models.transformers.causal import CausalDecoder

PROMPTS = [f"{'the cat saw the dog and ' * (n % 3)}the {word}" for n, word in enumerate("abcdefg")]
RESOLVED = {name: SpecConfig(name).resolve("vlm") for name in serving("vlm")}
METHODS = [name for name, own in RESOLVED.items() if {"drafter"}.issuperset(own.needs)]
NEW = 24


@pytest.fixture(scope="module")
def pipe():
    words = texts.tokenizer()
    made = mmspec.TextPipeline(texts.model(words), words, drafter=texts.model(words, seed=1))
    made.model.generation_config.eos_token_id = [*range(0, len(words), 5)]
    return made


def answers(pipe, batch_size, temperature=1.0, **call):
    seeds = [torch.Generator().manual_seed(n) for n in range(len(PROMPTS))]
    call = {"max_new_tokens": NEW, "temperature": temperature, "generator": seeds, **call}
    return pipe(PROMPTS, batch_size=batch_size, **call)


def check_same(out, whole):
    assert out.tokens == whole.tokens
    for name in ("method", "calls", "drafted", "accepted", "emitted", "fault"):
        assert getattr(out.stats, name) == getattr(whole.stats, name)
    assert out.stats.fault is None
    lengths = sorted(map(len, out.tokens))
    assert lengths[0] < lengths[-1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", METHODS)
def test_answers_are_the_same(pipe, method, temperature):
    # weights are rounded in float32 alone
    pipe.to(torch.float32 if RESOLVED[method].rounds else torch.float64)
    pipe.enable_speculation(texts.by_itself(method))
    whole = answers(pipe, None, temperature)
    for size in (1, 3):
        check_same(answers(pipe, size, temperature), whole)


LENGTHS = ["heuristic", "confidence", "specdec++", "eos-ema"]


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths_are_a_sample_s_own(pipe, length):
    pipe.to(torch.float64)
    pipe.enable_speculation(SpecConfig("draft", length=length))
    whole = answers(pipe, None)
    for size in (1, 3):
        check_same(answers(pipe, size), whole)


@pytest.mark.parametrize("method", ["draft", "specqd"])
def test_confidence_counts_in_greedy_text(pipe, method):
    """By the laws whose likeliest tokens are drafted; the text stays plain decoding's."""
    pipe.to(torch.float32)
    pipe.disable_speculation()
    plain, drafted = answers(pipe, None, temperature=0.0).tokens, []
    for sure in (0, 1):
        pipe.enable_speculation(f"{method}[length=confidence,confidence={sure},max_draft_tokens=8]")
        out = answers(pipe, None, temperature=0.0)
        assert out.tokens == plain
        drafted.append(sum(out.stats.drafted))
    assert drafted[1] < drafted[0]


@pytest.mark.parametrize(
    "name",
    ["eagle", "eagle3", "flash", "dflash", "falcon", "longspec", "medusa", "hydra", "vispec"],
)
def test_heads(name):
    words = texts.tokenizer()
    model = texts.model(words)
    head = tiny_head(name, model)
    method = head.method
    pipe = mmspec.TextPipeline(model, words, heads={method: head})
    pipe.model.generation_config.eos_token_id = [*range(0, len(words), 5)]
    pipe.enable_speculation(texts.by_itself(method))
    whole = answers(pipe, None)
    check_same(answers(pipe, 1), whole)
    check_same(answers(pipe, 3), whole)
    assert sum(whole.stats.accepted) > 0


@pytest.mark.parametrize("length", ["goodput", "faser", "speckv"])
def test_lengths_by_goodput_are_the_batch_s(pipe, length):
    """And the greedy text is the same, however long drafts are."""
    pipe.to(torch.float64)
    pipe.enable_speculation(SpecConfig("draft", length=length))
    whole = answers(pipe, None, temperature=0.0)
    for size in (1, 3):
        assert answers(pipe, size, temperature=0.0).tokens == whole.tokens


def test_a_new_prompt_is_read_alone(pipe, monkeypatch):
    """Of one row, its real columns alone; the others go on from where they are."""
    pipe.to(torch.float64)
    pipe.disable_speculation()
    calls = []
    forward = CausalDecoder.forward

    def counting(self, x, *args, **kwargs):
        calls.append(x.shape[:2])
        return forward(self, x, *args, **kwargs)

    monkeypatch.setattr(CausalDecoder, "forward", counting)
    out = answers(pipe, 3)
    lengths = [len(pipe.tokenizer(prompt)["input_ids"]) for prompt in PROMPTS]
    read = [columns for rows, columns in calls if rows == 1 and columns > 1]
    # the template's columns are the same for all
    around = {columns + 1 - length for columns, length in zip(read, lengths[3:], strict=True)}
    assert len(around) == 1
    assert max(rows for rows, _ in calls) == 3
    assert out.stats.emitted == [len(tokens) for tokens in out.tokens]


def test_rows_are_full_as_long_as_prompts_wait(pipe):
    pipe.to(torch.float64)
    pipe.disable_speculation()
    running = []

    def watch(pipe, number, done, state):
        running.append(sum(count > 0 for count in state["context"].emitted))

    out = answers(pipe, 3, callback_on_step_end=watch)
    ends = [0] * 3
    for tokens in out.tokens:
        ends[ends.index(min(ends))] += len(tokens)
    assert len(running) == max(ends)
    assert running == [sum(end > number for end in ends) for number in range(max(ends))]
    assert len(out.stats.rounds) == max(ends)


def test_what_is_said_of_every_sample(pipe):
    pipe.to(torch.float64)
    pipe.enable_speculation("prompt-lookup")
    for size in (None, 2):
        stats = answers(pipe, size).stats
        assert len(stats.latency) == len(PROMPTS)
        for (first, last), calls in zip(stats.latency, stats.calls, strict=True):
            assert 0 < first <= last
            assert (first == last) == (calls == 1)


def test_stop_strings_and_penalties_know_their_prompt(pipe, monkeypatch):
    pipe.to(torch.float64)
    monkeypatch.setattr(pipe.model.generation_config, "repetition_penalty", 1.5)
    pipe.enable_speculation("prompt-lookup")
    free = answers(pipe, 2)
    said = [c for text in free.text for c in text[:-1] if c.isascii() and c.isalpha()]
    whole = answers(pipe, None, stop=said[:2])
    assert answers(pipe, 2, stop=said[:2]).tokens == whole.tokens
    assert whole.tokens != free.tokens
    monkeypatch.setattr(pipe.model.generation_config, "repetition_penalty", 1.0)
    assert answers(pipe, 2).tokens != free.tokens


def test_tables_that_live_on_learn_of_all(pipe):
    pipe.to(torch.float64)
    pipe.enable_speculation("token-recycling[table_lives=true,static_nodes=80]")
    first = answers(pipe, 2, temperature=0.0)
    again = answers(pipe, 2, temperature=0.0)
    assert again.tokens == first.tokens
    # what followed each answer's tokens is known by now, of all but what stands twice in a text
    assert sum(again.stats.calls) < sum(first.stats.calls)
    alone = [pipe(prompt, max_new_tokens=NEW, temperature=0.0).stats for prompt in PROMPTS]
    assert sum(again.stats.calls) <= sum(sum(stats.calls) for stats in alone)


def test_interrupted_while_prompts_wait(pipe):
    pipe.to(torch.float64)
    pipe.disable_speculation()

    def stop(pipe, number, done, state):
        pipe.interrupt = number == 2

    out = answers(pipe, 2, callback_on_step_end=stop)
    lengths = [len(tokens) for tokens in out.tokens]
    assert sum(lengths) <= 2 * 2
    assert lengths[4:] == [0] * 3
    assert out.text[4:] == [""] * 3


def test_what_an_interrupt_leaves_is_kept_where_no_token_ends_a_text(pipe, monkeypatch):
    """No token fills shorter answers up, and some prompts have none yet."""
    pipe.to(torch.float64)
    pipe.enable_speculation("prompt-lookup")
    for name in ("eos_token_id", "pad_token_id"):
        monkeypatch.setattr(pipe.model.generation_config, name, None)
    whole = answers(pipe, 2)

    def stop(pipe, number, done, state):
        pipe.interrupt = number == 3

    out = answers(pipe, 2, callback_on_step_end=stop)
    lengths = [len(tokens) for tokens in out.tokens]
    assert lengths == out.stats.emitted
    assert min(lengths[:2]) >= 3
    assert lengths[2:] == [0] * 5
    kept = [own[:n] for own, n in zip(whole.tokens, lengths, strict=True)]
    assert out.tokens == kept


def test_of_bad_sizes(pipe):
    pipe.disable_speculation()
    with pytest.raises(InputError, match="batch_size"):
        answers(pipe, 0)
    with pytest.raises(InputError, match="leave streamer or batch_size out"):
        answers(pipe, 2, streamer=TextStreamer(pipe.tokenizer))
    pipe.listener = object()
    try:
        with pytest.raises(InputError, match="leave batch_size out"):
            answers(pipe, 2)
    finally:
        pipe.listener = None
