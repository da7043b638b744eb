"""The two ways that the benchmark compares give the same laws."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from transformers import Mamba2Config, Mamba2ForCausalLM

from benchmarks import state_trees
from mmspec.engine.draft import Draft
from mmspec.engine.laws import OneHot
from mmspec.models.transformers.mamba2 import TreeMixer

TINY = dict(hidden_size=16, num_heads=4, head_dim=8, state_size=8, num_hidden_layers=2)


def test_scan_and_branches_say_the_same(monkeypatch):
    monkeypatch.setattr(state_trees, "VOCAB", 64)
    config = Mamba2Config(vocab_size=64, n_groups=1, pad_token_id=0, eos_token_id=0, **TINY)
    model = Mamba2ForCausalLM(config)
    scan = state_trees._decoder(model)
    with patch.object(TreeMixer, "of", lambda *_: None):
        branches = state_trees._decoder(model)
    parents = state_trees.SHAPES["tree of 16, 4 deep"]
    inputs = torch.arange(len(parents) + 1)[None]
    draft = Draft(inputs[:, 1:], torch.tensor([len(parents)]), OneHot(), torch.tensor([parents]))
    with torch.inference_mode():
        laws = [way.extend(inputs, [8], draft) for way in (scan, branches)]
    torch.testing.assert_close(*laws, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_every_shape_is_measured(monkeypatch):
    monkeypatch.setattr(state_trees, "SIZES", TINY)
    monkeypatch.setattr(state_trees, "VOCAB", 64)
    found = state_trees.state_trees(samples=2)
    assert {*found} == {"one_token_ms", *state_trees.SHAPES}
    assert all(found[name]["scan_ms"] > 0 for name in state_trees.SHAPES)
