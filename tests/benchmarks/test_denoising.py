"""The benchmarks on the linear chain: the exact rule has no bias, the released one is seen."""

from __future__ import annotations

import pytest
import torch

from benchmarks import denoising
from benchmarks.toy_chains import MarkovHead, MarkovTokens
from mmspec.models.mar.iterations import MarPlan, plainly
from mmspec.models.mar.schedule import DiffusionSchedule


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(denoising, "STEPS", 8)
    monkeypatch.setattr(denoising, "LENGTHS", (3,))
    monkeypatch.setattr(denoising, "SOFTENINGS", (1.0, 42.0))


def test_bias():
    found = denoising.cspd_bias(samples=20)
    cases = ("exact", "softening 1", "softening 42")
    assert list(found) == [
        "together",
        *(f"{gap}, {name}" for gap in denoising.GAPS for name in cases),
    ]
    figures = ("mean", "deviation", "correlation")
    for gap in denoising.GAPS:
        exact = found[f"{gap}, exact"]
        assert all(abs(exact[key]) < 5 * exact["error"] for key in figures)
        # what does not know of its neighbours does not follow them
        assert found[f"{gap}, softening 1"]["correlation"] < -0.3
        assert found[f"{gap}, softening 42"]["correlation"] < -10 * exact["error"]
    kept = [found[f"near, {name}"]["accepted"] for name in cases]
    assert 0.3 < kept[0] < 0.95
    assert kept[1] < kept[2]
    for key in figures:
        assert found["together"][key] == pytest.approx(found["far, softening 1"][key], abs=0.02)


def test_law_of_the_tokens_against_one_that_is_drawn():
    """The closed form of the second token, from draws of both; five standard errors."""
    rows = 4000
    head = MarkovHead.of_data(
        torch.full((16,), 0.3).double(), DiffusionSchedule.trained("cosine").respaced(8), 0.3
    )
    tokens = MarkovTokens(head, MarPlan(2, 2, diffusion_steps=8), range(rows), 1.0, 0.6)
    drawn = torch.zeros(rows, 2, 16, dtype=torch.float64)
    for n, prediction in enumerate(tokens.predictions(drawn, [1, 1])):
        drawn[:, n] = plainly(prediction)
    one, two = drawn.transpose(0, 1).flatten(1)
    mean, deviation, correlation = (law[0].item() for law in tokens.law(2))
    error = 5 * len(two) ** -0.5
    assert abs(two.mean().item() - mean) / deviation < error
    assert abs(two.std().item() / deviation - 1) < error
    assert abs(torch.corrcoef(torch.stack([one, two]))[0, 1].item() - correlation) < error
    assert correlation > 0.3


def test_calls():
    found = denoising.denoising_calls(samples=5)
    rules = ("reflection", "gamma-maximal", "block")
    assert set(found) == {f"{d}, {r}, 3" for d in ("frozen", "denoiser") for r in rules}
    for row in found.values():
        assert 2 <= row["calls"] <= row["most"] < 8
        assert row["mean_acceptance_length"] == pytest.approx(8 / row["calls"], rel=0.05)
