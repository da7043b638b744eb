"""The benchmarks on the linear chain: the exact rule has no bias, the released one is seen."""

from __future__ import annotations

import pytest
import torch

from mmspec.engine.coins import ProductionCoins
from mmspec.eval.bench import denoising
from mmspec.models.denoising import last_noisy_law
from mmspec.models.diffusion import DiffusionSchedule
from mmspec.worlds.linear_gaussian import LinearGaussian


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(denoising, "STEPS", 8)
    monkeypatch.setattr(denoising, "LENGTHS", (3,))
    monkeypatch.setattr(denoising, "SOFTENINGS", (1.0, 42.0))


def test_bias():
    found = denoising.cspd_bias(samples=20)
    assert list(found) == ["exact", "softening 1", "softening 42"]
    error = 5 * found["exact"]["error"]
    assert all(abs(found["exact"][key]) < error for key in ("mean", "deviation", "correlation"))
    assert found["softening 42"]["mean"] < -0.5
    assert found["softening 42"]["accepted"] > 0.9 > found["softening 1"]["accepted"]


def test_law_of_the_tokens_against_one_that_is_drawn():
    """The closed form of the second token, from draws of both; five standard errors."""
    rows = 4000
    target = LinearGaussian.of_data(
        torch.full((16,), 0.3).double(), DiffusionSchedule.trained("cosine").respaced(8), 0.3
    )
    coins, before, drawn = ProductionCoins(list(range(rows))), torch.zeros(rows, 16).double(), []
    for n in range(2):
        noise = coins.round(n)[0].normal((8, 16))
        mean, std = last_noisy_law(target, noise[:, :-1], 1 + denoising.SLOPE * before)
        before = mean + std * noise[:, -1]
        drawn.append(before.flatten())
    mean, deviation, correlation = denoising.token_law(target, 2)
    error = 5 * len(drawn[1]) ** -0.5
    assert abs(drawn[1].mean().item() - mean) / deviation < error
    assert abs(drawn[1].std().item() / deviation - 1) < error
    assert abs(torch.corrcoef(torch.stack(drawn))[0, 1].item() - correlation) < error


def test_calls():
    found = denoising.denoising_calls(samples=5)
    assert set(found) == {
        f"{d}, {r}, 3" for d in ("frozen", "denoiser") for r in ("gamma-maximal", "block")
    }
    for row in found.values():
        assert 2 <= row["calls"] <= row["most"] < 8
        assert row["mean_acceptance_length"] == pytest.approx(8 / row["calls"], rel=0.05)
