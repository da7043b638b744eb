"""The peer comparison compares like with like: the same greedy text, counted on both sides."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks import peer


@pytest.fixture
def small(monkeypatch):
    sizes = dict(num_hidden_layers=2, num_attention_heads=2)
    monkeypatch.setattr(peer, "TARGET", dict(hidden_size=32, intermediate_size=48, **sizes))
    monkeypatch.setattr(peer, "DRAFTER", dict(hidden_size=16, intermediate_size=24, **sizes))
    monkeypatch.setattr(peer, "NEW", 20)


def test_same_text_and_calls(small):
    figures = peer.against_assisted_generation(None, 3, steps=30)
    for method in ("plain", "draft", "prompt-lookup"):
        assert figures[method]["same_text"] == 1
    assert figures["plain"]["calls_ours"] == figures["plain"]["calls_theirs"] == 20
    # γ tokens a round on both sides; only what the last round drafts may differ
    assert figures["draft"]["calls_ours"] == pytest.approx(figures["draft"]["calls_theirs"], abs=1)
    assert figures["draft"]["calls_ours"] < 20
    assert figures["batch_8"]["same_text"] == 1
    assert "batch_size = 1" in figures["batch_8"]["transformers"]


def test_the_models_learn_the_captions():
    """Far better than chance after few steps, or the comparison would be of noise."""
    sizes = dict(hidden_size=32, intermediate_size=48)
    model = peer.train(dict(num_hidden_layers=1, num_attention_heads=2, **sizes), 100)
    ids = peer.corpus(np.random.default_rng(5), 8, 48)
    with torch.no_grad():
        loss = float(model(input_ids=ids, labels=ids).loss)
    assert loss < 0.6 * torch.tensor(float(model.config.vocab_size)).log()
