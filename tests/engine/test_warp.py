"""The warpers against those of transformers, which are another implementation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from mmspec.engine.warp import Warp


def transformers_law(logits: torch.Tensor, warp: Warp) -> torch.Tensor:
    scores = logits
    if warp.temperature != 1:
        scores = TemperatureLogitsWarper(warp.temperature)(None, scores)
    if warp.top_k:
        scores = TopKLogitsWarper(warp.top_k)(None, scores)
    if warp.top_p < 1:
        scores = TopPLogitsWarper(warp.top_p)(None, scores)
    return scores.softmax(-1)


warps = st.builds(
    Warp,
    temperature=st.floats(0.1, 3.0),
    top_k=st.integers(0, 12),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(warps, st.integers(2, 10), st.integers(0, 2**31), st.booleans())
def test_equals_transformers(warp, vocab, seed, ruled_out):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(4, vocab, generator=generator, dtype=torch.float64)
    if ruled_out:
        logits[:, 0] = -torch.inf
    law = warp(logits)
    # on the border of top-p the two round differently
    before = Warp(warp.temperature, warp.top_k)(logits).sort(-1, descending=True).values.cumsum(-1)
    assume((before - warp.top_p).abs().min() > 1e-9)
    assert torch.allclose(law, transformers_law(logits, warp), atol=1e-12, rtol=0)


def test_top_k_keeps_ties():
    logits = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0])
    law = Warp(top_k=2)(logits)
    assert (law > 0).tolist() == [True, True, True, True, False]
    assert torch.equal(law, transformers_law(logits[None], Warp(top_k=2))[0])


def test_top_p_by_hand():
    """The smallest set that reaches the mass, the token that crosses it included."""
    logits = torch.tensor([0.1, 0.5, 0.15, 0.25], dtype=torch.float64).log()
    kept = {0.4: [1], 0.5001: [1, 3], 0.75001: [1, 2, 3], 0.91: [0, 1, 2, 3], 1.0: [0, 1, 2, 3]}
    for top_p, tokens in kept.items():
        law = Warp(top_p=top_p)(logits)
        assert law.nonzero().flatten().tolist() == tokens
        share = logits.exp()[tokens]
        assert torch.allclose(law[tokens], share / share.sum())


@pytest.mark.parametrize(("top_p", "count"), [(0.25, 1), (0.5, 2), (0.75, 3)])
def test_top_p_that_is_reached_exactly(top_p, count):
    """Quarters are numbers without rounding: what reaches the mass is enough."""
    law = Warp(top_p=top_p)(torch.zeros(4))
    assert law.sort(descending=True).values.tolist() == [
        pytest.approx(1 / count) if n < count else 0 for n in range(4)
    ]


def test_top_p_of_zero_keeps_the_best():
    """As in transformers, at least one token stays."""
    logits = torch.tensor([[0.3, 2.0, 1.0]])
    assert transformers_law(logits, Warp(top_p=0.0)).tolist() == [[0, 1, 0]]
    assert Warp(top_p=0.0)(logits).tolist() == [[0, 1, 0]]


def test_temperature_is_applied_first():
    """Top-p sees the sharpened law."""
    logits = torch.tensor([0.4, 0.35, 0.25]).log()
    assert (Warp(top_p=0.7)(logits) > 0).sum() == 2
    assert (Warp(temperature=0.1, top_p=0.7)(logits) > 0).sum() == 1


def test_temperature_zero_is_greedy():
    logits = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
    law = Warp(temperature=0)(logits)
    assert torch.equal(law.argmax(-1), logits.argmax(-1))
    assert torch.equal(law.sum(-1), torch.ones(3, 5))
    assert set(law.unique().tolist()) == {0.0, 1.0}
    tied = torch.tensor([1.0, 3.0, 3.0])
    assert Warp(temperature=0, top_k=2, top_p=0.5)(tied).tolist() == [0, 1, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_law_is_never_in_half_precision(dtype):
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    logits = torch.randn(2, 9, generator=torch.Generator().manual_seed(0)).to(dtype)
    for warp in (Warp(), Warp(temperature=0), Warp(0.7, 4, 0.9)):
        assert warp(logits).dtype == wide
        assert torch.allclose(warp(logits).sum(-1), torch.ones(2, dtype=wide))


def test_logits_are_left_alone():
    logits = torch.randn(2, 9, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    for warp in (Warp(), Warp(0), Warp(0.7, 4, 0.9)):
        warp(logits)
    assert torch.equal(logits, before)


def test_any_leading_shape():
    logits = torch.randn(2, 3, 9, generator=torch.Generator().manual_seed(0)).double()
    warp = Warp(0.7, 6, 0.9)
    assert torch.allclose(warp(logits)[1, 2], warp(logits[1, 2]))
