"""Coins against a slow twin in Python's own integers: equal seeds mean equal output for good."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch

from mmspec.engine.coins import ACCEPT, PROPOSE, PROPOSE_ACCEPT, RECOVER, ProductionCoins

WORD = 2**64
SEEDS = [0, 1, 42, -7, 2**63 + 5]
PURPOSES = (PROPOSE, ACCEPT, RECOVER, PROPOSE_ACCEPT)
ROUNDS = (0, 1, 31, 32, 70, 1000)
NORMAL = int.from_bytes(b"Normal", "big")


def mix(x: int) -> int:
    """The finalizer of splitmix64 behind its step (Steele et al. 2014, figure 17)."""
    z = x * 0x9E3779B97F4A7C15 % WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


def uniform(key: int, index: int) -> float:
    """The first 53 bits of the number `index` of a key."""
    return (mix(key + mix(index + 1)) >> 11) / 2**53


def key_of(seed: int, number: int, purpose: int) -> int:
    return mix(mix(seed) + mix(number * len(PURPOSES) + purpose + 1))


@pytest.mark.parametrize("number", ROUNDS)
def test_uniform(number):
    coins = ProductionCoins(SEEDS)
    for purpose in PURPOSES:
        expected = [[uniform(key_of(s, number, purpose), i) for i in range(20)] for s in SEEDS]
        assert coins.uniform(number, purpose, 0, 20).tolist() == expected
        assert coins.uniform(number, purpose, 3, 5).tolist() == [row[3:8] for row in expected]
        index = torch.tensor([[7, 0, 19]]).expand(len(SEEDS), -1)
        picked = coins.picked(number, purpose, index).tolist()
        assert picked == [[row[i] for i in (7, 0, 19)] for row in expected]


def test_a_generation_that_is_resumed_goes_on():
    whole, resumed = ProductionCoins(SEEDS), ProductionCoins(SEEDS, over=33)
    weights = torch.ones(len(SEEDS), 1000)
    for side in (0, 1):
        expected = whole.round(40)[side].draw(weights)
        assert torch.equal(resumed.round(7)[side].draw(weights), expected)


def bell(key: int, index: int) -> float:
    return NormalDist().inv_cdf(max(uniform(key, index), 2.0**-54))


@pytest.mark.parametrize("number", ROUNDS)
@pytest.mark.parametrize(("side", "purpose"), [(0, PROPOSE), (1, RECOVER)])
def test_normal(number, side, purpose):
    found = ProductionCoins(SEEDS).round(number)[side].normal((2, 3), 4)
    for row, seed in zip(found.flatten(1).tolist(), SEEDS, strict=True):
        key = mix(mix(mix(seed) + NORMAL) + mix(number * len(PURPOSES) + purpose))
        assert row == pytest.approx([bell(key, 4 + i) for i in range(6)], abs=1e-12)


def test_what_belongs_to_places():
    positions = torch.tensor([[0, 5, 900]]).expand(len(SEEDS), -1)
    coins = ProductionCoins(SEEDS).round(3)[0]
    noise, waiting = coins.noise(positions, 2), coins.exponential(positions, 2)
    for b, seed in enumerate(SEEDS):
        for n, place in enumerate((0, 5, 900)):
            key = mix(mix(mix(seed) + NORMAL) + mix(-1 - place))
            expected = [bell(key, i) for i in range(2)]
            assert noise[b, n].tolist() == pytest.approx(expected, abs=1e-12)
            key = mix(mix(seed) + mix(-1 - place))
            expected = [-math.log(uniform(key, i) + 2.0**-54) for i in range(2)]
            assert waiting[b, n].tolist() == pytest.approx(expected, rel=1e-12)
