"""Rows that are over run no more: the others' output is what it was, and calls have fewer rows."""

from __future__ import annotations

import pytest
import texts
import torch
import vlms
from toy_vlm import tiny_head

import mmspec
from mmspec import SpecConfig
from mmspec.methods import serving
from mmspec.models import running_rows
from mmspec.models.guided import GuidedDecoder
from mmspec.models.running_rows import RunningRows
from mmspec.models.setting import Setting
from mmspec.models.transformers.causal import CausalDecoder

PROMPTS = [f"the {'cat saw the dog and ' * (n % 3)}{word}" for n, word in enumerate("abcdefgh")]
RESOLVED = {name: SpecConfig(name).resolve("vlm") for name in serving("vlm")}
METHODS = [name for name, own in RESOLVED.items() if {"drafter"}.issuperset(own.needs)]
NEW = 24


def test_samples_that_are_over_go():
    rows = RunningRows(8, 2, torch.device("cpu"))
    x = torch.arange(16.0)[:, None]
    assert torch.equal(rows.of(x), x)
    assert torch.equal(rows.of_all(x), x)
    assert rows.leave([False] * 8) is None
    over = [n in (1, 6) for n in range(8)]
    kept = [0, 2, 3, 4, 5, 7]
    assert rows.leave(over) == [*kept, *(8 + n for n in kept)]
    assert rows.left == kept
    assert rows.of(x)[:, 0].tolist() == [*kept, *(8 + n for n in kept)]
    whole = rows.of_all(rows.of(x))
    assert whole[:, 0].tolist() == [0 if n % 8 in (1, 6) else n for n in range(16)]
    over = [n in (1, 6, 0, 4, 5) for n in range(8)]
    # as numbered among those that ran
    assert rows.leave(over) == [1, 2, 5, 7, 8, 11]
    assert rows.left == [2, 3, 7]
    assert rows.leave([True] * 8) is None  # nothing is to come


def test_few_of_many_run_along():
    """To take one row of many out costs more than to let it run."""
    rows = RunningRows(16, 1, torch.device("cpu"))
    assert rows.leave([n < 1 for n in range(16)]) is None
    assert rows.leave([n < 2 for n in range(16)]) == [*range(2, 16)]


@pytest.fixture
def counted(monkeypatch):
    """Rows of every call of a network over a cache."""
    counts = []
    forward = CausalDecoder.forward

    def counting(self, x, *args, **kwargs):
        counts.append(len(x))
        return forward(self, x, *args, **kwargs)

    monkeypatch.setattr(CausalDecoder, "forward", counting)
    return counts


@pytest.fixture(scope="module")
def pipe():
    words = texts.tokenizer()
    made = mmspec.TextPipeline(texts.model(words), words, drafter=texts.model(words, seed=1))
    made.model.generation_config.eos_token_id = [*range(0, len(words), 5)]
    return made


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", METHODS)
def test_answers_are_those_of_whole_batches(pipe, method, temperature, counted, monkeypatch):
    # weights are rounded in float32 alone
    pipe.to(torch.float32 if RESOLVED[method].rounds else torch.float64)
    pipe.enable_speculation(texts.by_itself(method))

    def answers():
        counted.clear()
        seeds = [torch.Generator().manual_seed(n) for n in range(len(PROMPTS))]
        call = {"max_new_tokens": NEW, "temperature": temperature, "generator": seeds}
        return pipe(PROMPTS, **call)

    out = answers()
    few = min(counted)
    with monkeypatch.context() as patch:
        patch.setattr(running_rows, "RUNNING", 0)
        whole = answers()
    assert set(counted) == {8}
    assert out.tokens == whole.tokens
    for name in ("calls", "drafted", "accepted", "emitted"):
        assert getattr(out.stats, name) == getattr(whole.stats, name)
    lengths = sorted(map(len, out.tokens))
    assert lengths[0] < lengths[-1]
    assert few < 8 or RESOLVED[method].rule.routes  # rows wait for each other's steps


def test_under_guidance(pipe, counted):
    """Both rows of a sample leave together."""
    model = pipe.model.to(torch.float64)
    pipe.tokenizer.pad_token = pipe.tokenizer.eos_token
    inputs = pipe.tokenizer(PROMPTS, padding=True, padding_side="left", return_tensors="pt")
    how = {"guidance_scale": 1.5, "max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(**inputs, **how)
    mmspec.enable_speculation(model, "prompt-lookup")
    try:
        counted.clear()
        assert torch.equal(model.generate(**inputs, **how), expected)
    finally:
        mmspec.disable_speculation(model)
    assert max(counted) == 16 > min(counted)
    assert all(count % 2 == 0 for count in counted)


@pytest.mark.parametrize("name", ["eagle", "dflash", "falcon", "hydra", "longspec"])
@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
def test_heads_and_positions_of_several_axes(family, name, counted):
    model = vlms.made(family).double()
    inputs = vlms.asked(model, [1, 0, 2, 0, 0, 0])
    inputs = {n: x.double() if x.is_floating_point() else x for n, x in inputs.items()}
    ends = [*range(0, model.config.get_text_config().vocab_size, 7)]
    how = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": ends, "pad_token_id": 0}
    expected = model.generate(**inputs, **how)
    head = tiny_head(name, model).to(model.dtype).eval()
    mmspec.enable_speculation(model, head=head)
    counted.clear()
    assert torch.equal(model.generate(**inputs, **how), expected)
    assert model.speculation_stats.fault is None
    assert max(counted) == 6 > min(counted)


def test_a_second_start_runs_all_rows():
    words = texts.tokenizer()
    decoder = CausalDecoder(texts.model(words))
    prefix = decoder.embed(torch.randint(3, 90, (4, 6)))
    mask = torch.ones(4, 6, dtype=torch.bool)
    target = GuidedDecoder(decoder, Setting(prefix, mask, None, lambda x: x.softmax(-1), 8, 0, 1))
    tokens = torch.zeros(4, 1, dtype=torch.long)
    found = []
    for _ in range(2):
        target.start(4)
        whole = target.extend(tokens, [-1] * 4)
        target.leave([False, True, True, False])
        part = target.extend(tokens, [-1] * 4)
        torch.testing.assert_close(part[[0, 3]], whole[[0, 3]])
        torch.testing.assert_close(part[1], torch.full_like(part[1], 1 / part.shape[-1]))
        found.append(whole)
        if not len(found) % 2:
            target.seconds_per_call(repeats=1)
            assert target.extend(tokens, [-1] * 4)[1].std() > 0  # a cost is of all rows
    torch.testing.assert_close(*found)
