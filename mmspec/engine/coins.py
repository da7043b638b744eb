"""Coins: all randomness of drafting and verification.

A coin is a pure function of (row seed, purpose, round, index in the round); a row's round and
index fix its absolute position. So no row's randomness depends on its neighbours, on how long
earlier drafts were, or on which coins a rule did not need. Proposals and verification have coins
of their own: an exact rule judges a draft by chance that the draft has never seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .draft import Context

PROPOSE, ACCEPT, RECOVER, PROPOSE_ACCEPT = range(4)
_PURPOSES = 4
_ROUNDS = 32  # coins are made for this many rounds at a time
_NORMALS = 16384  # normal numbers that are made at a time, of as many rounds
_NORMAL, _PLACES = 0x4E6F726D616C, 0x506C61636573  # keys of their own: those of lines are others


class RoundCoins(Protocol):
    """The coins of one round and one side, proposal or verification."""

    def accept(self, prob: Tensor, lengths: Tensor) -> Tensor:
        """True with probability `prob`, per entry `[B, N]`.

        Entries of row b from `lengths[b]` on do not matter: they may be anything.
        """

    def draw(self, weights: Tensor, index: int | Tensor = 0) -> Tensor:
        """Ids drawn in proportion to `weights [B, V]` or `[B, K, V]`, of shape `[B]` or `[B, K]`.

        `index` numbers the first of the K draws, or each of them `[B, K]`, so that several calls in
        a round differ.
        """

    def normal(self, shape: tuple[int, ...], index: int = 0) -> Tensor:
        """Standard normal numbers `[B, *shape]`, numbered from `index` on."""

    def noise(self, positions: Tensor, count: int) -> Tensor:
        """Standard normal numbers `[B, n, count]` of `positions [B, n]`, equal in every round."""

    def exponential(self, positions: Tensor, count: int) -> Tensor:
        """Standard exponential numbers `[B, n, count]` of `positions [B, n]`.

        They belong to the row and the place, and are the same in every round.
        """


class Coins(Protocol):
    """Coins for a whole generation."""

    def round(self, number: int) -> tuple[RoundCoins, RoundCoins]:
        """Proposal coins and verification coins of a round."""


class ProductionCoins:
    """Counter-based coins: no state but the seeds.

    Args:
        seeds: one integer per row.
        device: where the coins are needed.
        over: rounds that are over already, of a generation that is resumed.
    """

    _over = 0

    def __init__(self, seeds: list[int], device: torch.device | str = "cpu", over: int = 0) -> None:
        wrapped = [(s + 2**63) % 2**64 - 2**63 for s in seeds]
        self._keys = _mix(torch.tensor(wrapped, dtype=torch.int64, device=device))  # [B]
        self._of_samples, self._over = self._keys, over
        self._began: Tensor | None = None  # [B, 1]: rounds before a row's first; None: none
        self._width, self._first = 16, -1
        self._block: tuple[Tensor, ...] = ()
        self._ahead: dict[int, tuple[int, tuple[Tensor, ...]]] = {}  # see `normal_of`

    def __getstate__(self) -> dict[str, object]:
        # coins that are there are made again
        return {**self.__dict__, "_block": (), "_first": -1, "_ahead": {}}

    @property
    def device(self) -> torch.device:
        """Device of the coins."""
        return self._keys.device

    def round(self, number: int) -> tuple[RoundCoins, RoundCoins]:
        number += self._over
        return _Proposals(self, number), _Verifications(self, number)

    def seat(self, context: Context, rows: list[int]) -> None:
        self._keys = context.of_samples(self._of_samples)
        began = context.began or [0] * context.rows
        self._began = torch.tensor(began, device=self._keys.device)[:, None]
        self._first, self._ahead = -1, {}  # the coins that are there are of others

    def lines(self, numbers: Tensor) -> Tensor:
        """Lines `[n]` of coins, numbered from the first round on, by row: `[B, n]`."""
        return numbers if self._began is None else numbers - self._began * _PURPOSES

    def at(self, rows: Tensor, positions: Tensor) -> ProductionCoins:
        """Coins `[R]` for the `positions [R]` of some rows, each of which is a row of its own.

        What a place of a row gets depends on neither the other places nor the other rows.
        """
        coins = ProductionCoins([], self._keys.device)
        coins._keys = _mix(_mix(self._keys[rows] + _PLACES) + _mix(positions))
        return coins

    def uniform(self, number: int, purpose: int, start: int, count: int) -> Tensor:
        """Uniform numbers in [0, 1) with 53 bits: `[B, count]`, float64."""
        first = number // _ROUNDS
        if first != self._first or start + count > self._width:
            while start + count > self._width:
                self._width *= 2
            self._block, self._first = self._make(first), first
        line = self._block[number % _ROUNDS * _PURPOSES + purpose]
        return line if start == 0 and count == self._width else line[:, start : start + count]

    def picked(self, number: int, purpose: int, index: Tensor) -> Tensor:
        """The uniform numbers `[B, K]` of `uniform` that `index [B, K]` says."""
        line = self.lines(torch.tensor([number * _PURPOSES + purpose], device=index.device))
        keys = _mix(self._keys[:, None] + _mix(line + 1))  # [B, 1]
        return _uniform(_mix(keys + _mix(index + 1)))

    def exponential(self, positions: Tensor, count: int) -> Tensor:
        keys = _mix(self._keys[:, None] + _mix(-1 - positions))  # lines of rounds are positive
        u = _uniform(_bits(keys, count)) + 2.0**-54
        # the largest u rounds to 1, and its noise over a probability of 0 would be no number
        return (-u.log()).clamp_min_(2.0**-54)

    def normal(self, lines: Tensor, count: int, start: int = 0) -> Tensor:
        """Standard normal numbers `[B, n, count]` of `lines`, `[B, n]` or `[n]`."""
        keys = _mix(_mix(self._keys + _NORMAL)[:, None] + _mix(lines))
        # 0 has no normal number
        return torch.special.ndtri(_uniform(_bits(keys, count, start)).clamp_min(2.0**-54))

    def normal_of(self, number: int, purpose: int, start: int, count: int) -> Tensor:
        """Standard normal numbers `[B, count]` of a round and a purpose.

        To make them takes some seventy small operators, whatever their number: the first ones of a
        round are made for several rounds at a time, while they are few.
        """
        first, made = self._ahead.get(purpose, (0, ()))
        if not start and first <= number < first + len(made):
            line = made[number - first]
            if line.shape[1] >= count:
                return line[:, :count]
        rounds = 1 if start else max(1, min(_ROUNDS, _NORMALS // max(1, len(self._keys) * count)))
        lines = torch.arange(number, number + rounds, device=self.device) * _PURPOSES + purpose
        made = self.normal(self.lines(lines), count, start).unbind(1)
        if rounds > 1:
            self._ahead[purpose] = number, made
        return made[0]

    def _make(self, block: int) -> tuple[Tensor, ...]:
        """Coins `[B, width]` of every round and purpose of one block of rounds."""
        device = self._keys.device
        lines = torch.arange(_ROUNDS * _PURPOSES, device=device) + block * _ROUNDS * _PURPOSES
        keys = _mix(self._keys[:, None] + _mix(self.lines(lines) + 1))  # [B, rounds · purposes]
        return _uniform(_bits(keys, self._width)).unbind(1)


class _Proposals:
    _draws, _accepts = PROPOSE, PROPOSE_ACCEPT

    def __init__(self, coins: ProductionCoins, number: int) -> None:
        self._coins, self._number = coins, number

    def accept(self, prob: Tensor, lengths: Tensor) -> Tensor:
        # strict: u = 0 must not accept a token of probability 0
        return self._coins.uniform(self._number, self._accepts, 0, prob.shape[1]) < prob

    def draw(self, weights: Tensor, index: int | Tensor = 0) -> Tensor:
        count = weights.shape[1] if weights.ndim == 3 else 1
        if isinstance(index, int):
            u = self._coins.uniform(self._number, self._draws, index, count)
        else:
            u = self._coins.picked(self._number, self._draws, index)
        total = weights.cumsum(-1, dtype=torch.float64)
        point = (u if weights.ndim == 2 else u[..., None]) * total[..., -1:]
        # right: the first entry whose running sum exceeds the point, never one of weight 0; weights
        # that are no numbers have none, and get the last id
        drawn = torch.searchsorted(total, point, right=True).squeeze(-1)
        return drawn.clamp_max_(weights.shape[-1] - 1)

    def normal(self, shape: tuple[int, ...], index: int = 0) -> Tensor:
        count = torch.Size(shape).numel()
        return self._coins.normal_of(self._number, self._draws, index, count).view(-1, *shape)

    def noise(self, positions: Tensor, count: int) -> Tensor:
        return self._coins.normal(-1 - positions, count)  # lines of rounds are not negative

    def exponential(self, positions: Tensor, count: int) -> Tensor:
        return self._coins.exponential(positions, count)


class _Verifications(_Proposals):
    _draws, _accepts = RECOVER, ACCEPT


def _bits(keys: Tensor, count: int, start: int = 0) -> Tensor:
    """64 random bits `[..., count]` of every key, the first of them with number `start`."""
    numbers = torch.arange(start, start + count, device=keys.device)
    return _mix(keys[..., None] + _mix(numbers + 1))


def _uniform(bits: Tensor) -> Tensor:
    """Numbers in [0, 1) from 64 random bits each: their first 53, float64."""
    return ((bits >> 11) & (2**53 - 1)).double() * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    """The finalizer of splitmix64 (Steele et al. 2014) on int64; shifts are made logical."""
    x = x * -7046029254386353131  # 0x9E3779B97F4A7C15: neighbouring counters drift apart
    x = (x ^ ((x >> 30) & (2**34 - 1))) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    x = (x ^ ((x >> 27) & (2**37 - 1))) * -7723592293110705685  # 0x94D049BB133111EB
    return x ^ ((x >> 31) & (2**33 - 1))
