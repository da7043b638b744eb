"""Seconds of calls are those of text: of tokens that differ, as those of a draft do."""

from __future__ import annotations

import pytest
import torch

from benchmarks.experts.routing import touched, watched
from mmspec.engine.warp import Warp
from mmspec.models.guided import GuidedDecoder
from mmspec.models.setting import Setting
from mmspec.models.transformers.probe import probed
from mmspec.models.transformers.tiny import tiny

EXPERTS, EACH = 8, 2


@pytest.fixture(scope="module")
def guided():
    model = tiny("mixtral", torch.float64, num_local_experts=EXPERTS, num_experts_per_tok=EACH)
    decoder, ids = probed(model), torch.tensor([[3, 1, 4], [1, 5, 9]])
    prompt = decoder.prompt(ids, torch.ones_like(ids, dtype=torch.bool), 8)
    decoder.place(prompt)
    made = GuidedDecoder(decoder, Setting(prompt.embedded, prompt.mask, None, Warp(1.0), 8, 0, 16))
    return model, made


@pytest.mark.parametrize("tokens", [1, 5])
def test_a_timed_call_reads_tokens_that_differ(guided, tokens, monkeypatch):
    _, model = guided
    read, extend = [], model.extend
    monkeypatch.setattr(model, "extend", lambda x, start: read.append(x) or extend(x, start))
    assert model.seconds_per_call(tokens, repeats=2) > 0
    assert len(read) == 2
    for call in read:
        assert call.shape == (2, tokens)
        assert len(call.unique()) == 2 * tokens
        assert 0 <= int(call.min()) <= int(call.max()) < len(model.decoder.embeddings)


def test_a_timed_call_touches_more_experts_than_a_token_does(guided):
    model, made = guided
    with watched(model) as routes:
        made.seconds_per_call(6, repeats=1)
    for calls in routes:  # of a layer; the last one is timed, the first may read the prompt
        assert touched(calls[-1]) > EACH


@pytest.mark.parametrize(("takes", "calls"), [(0.01, 7), (0.06, 4), (0.5, 3)])
def test_slow_calls_are_timed_a_few_times(guided, takes, calls, monkeypatch):
    """The user waits for them; of quick ones there are as many as asked."""
    _, model = guided
    model.start(2)
    clock, extend = [0.0], model.extend

    def slow(tokens, start):
        clock.append(clock[-1] + takes)
        return extend(tokens, start)

    monkeypatch.setattr(model, "extend", slow)
    monkeypatch.setattr("mmspec.models.costed.time.perf_counter", lambda: clock[-1])
    assert model.seconds_per_call(repeats=7, enough=0.2) == pytest.approx(takes)
    assert len(clock) == 1 + calls
