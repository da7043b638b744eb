"""Noise by place: normal, the same for whoever reads it, apart from every other place and draw."""

from __future__ import annotations

import pytest
import torch

from mmspec.engine.coins import ProductionCoins
from mmspec.engine.noise import PlacedNoise

PLACES = torch.tensor([[3, 0, 7], [7, 3, 1]])


def test_noise_belongs_to_row_place_and_step():
    noise = PlacedNoise([5, 9])
    whole = noise.normal(PLACES, 0, 6, 4)
    assert whole.shape == (2, 3, 6, 4)
    assert torch.equal(noise.normal(PLACES, 2, 3, 4), whole[:, :, 2:5])
    assert torch.equal(noise.normal(PLACES.flip(1), 0, 6, 4), whole.flip(1))
    alone = PlacedNoise([9]).normal(PLACES[1:], 0, 6, 4)
    assert torch.equal(alone, whole[1:])


def test_noise_differs_by_row_place_step_and_draw():
    noise = PlacedNoise([5, 9])
    whole = noise.normal(torch.arange(8).expand(2, 8), 0, 6, 4)
    again = noise.normal(torch.arange(8).expand(2, 8), 0, 6, 4, draw=1)
    assert len(torch.cat([whole, again]).unique()) == 2 * whole.numel()
    draws = torch.tensor([[0] * 4 + [1] * 4] * 2)
    mixed = noise.normal(torch.arange(8).expand(2, 8), 0, 6, 4, draw=draws)
    assert torch.equal(mixed, torch.cat([whole[:, :4], again[:, 4:]], dim=1))


def test_noise_is_standard_normal():
    noise = PlacedNoise(list(range(64))).normal(torch.arange(16).expand(64, 16), 0, 20, 8)
    flat = noise.flatten()  # 163,840 numbers
    assert float(flat.mean()) == pytest.approx(0, abs=0.01)
    assert float(flat.var()) == pytest.approx(1, abs=0.015)
    for point in (-2.0, -0.5, 1.0):
        below = float((flat < point).double().mean())
        assert below == pytest.approx(float(torch.special.ndtr(torch.tensor(point))), abs=0.005)
    # neighbours in every direction know nothing of each other
    for dim in range(4):
        first, second = noise.narrow(dim, 0, 1), noise.narrow(dim, 1, 1)
        assert abs(float((first * second).mean())) < 5 / first.numel() ** 0.5


def test_noise_is_apart_from_coins():
    coins = ProductionCoins([5])
    noise = set(PlacedNoise([5]).normal(torch.arange(64)[None], 0, 10, 4).flatten().tolist())
    for number in range(4):
        for side in coins.round(number):
            assert not noise & set(side.normal((64,)).flatten().tolist())


def test_orders_are_even_and_belong_to_rows():
    orders = PlacedNoise(list(range(6000))).order(4)
    assert torch.equal(orders.sort(-1).values, torch.arange(4).expand(6000, 4))
    counts = torch.unique(orders, dim=0, return_counts=True)[1]
    assert len(counts) == 24
    assert float((counts - 250).abs().max()) < 5 * 250**0.5
    assert torch.equal(PlacedNoise([17]).order(4), orders[17:18])
