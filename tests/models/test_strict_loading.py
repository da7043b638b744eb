"""Weights that are put into a model by name: one that layers share stays one."""

from __future__ import annotations

import pytest
import texts
import torch

from mmspec.errors import InputError
from mmspec.models.loading import load_strict


@pytest.fixture
def models():
    words = texts.tokenizer()
    return texts.model(words, seed=0), texts.model(words, seed=1)


def test_a_shared_weight_stays_one(models):
    """A step of training moves it once, for both of its layers."""
    model, other = models
    load_strict(model, other.state_dict(), "there")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in other.named_parameters()]
    ids = torch.tensor([[5, 6, 7]])
    for one in models:
        one(ids, labels=ids).loss.backward()
    torch.testing.assert_close(model.lm_head.weight.grad, other.lm_head.weight.grad)


def test_two_tensors_for_one_weight(models):
    model, other = models
    weights = {name: weight.clone() for name, weight in other.state_dict().items()}
    load_strict(model, dict(weights), "there")  # copies of it are equal
    weights["lm_head.weight"] += 1
    with pytest.raises(InputError, match=r"there: .* are one weight, and differ here"):
        load_strict(model, weights, "there")
