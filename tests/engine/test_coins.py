"""Coins: a pure function of (seed, purpose, round, index), uniform, and never the impossible."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import mmspec.engine.coins as coins_module
from mmspec.engine.coins import _PURPOSES, ACCEPT, PROPOSE, RECOVER, ProductionCoins
from mmspec.engine.draft import Context
from mmspec.engine.proof.enumeration import EnumeratingCoins, enumerate_law

BELOW_ONE = 1 - 2.0**-53  # the largest coin


class Constant(ProductionCoins):
    """The shipped coins with a number put in for every uniform one."""

    def __init__(self, value: float, rows: int = 1) -> None:
        self.value, self.rows = value, rows

    def uniform(self, number, purpose, start, count):
        return torch.full((self.rows, count), self.value, dtype=torch.float64)


def numbers(seeds, rounds=32, purposes=range(_PURPOSES), width=64) -> torch.Tensor:
    """`[B, rounds, purposes, width]`."""
    coins = ProductionCoins(seeds)
    rows = [[coins.uniform(r, p, 0, width) for p in purposes] for r in range(rounds)]
    return torch.stack([torch.stack(row, 1) for row in rows], 1)


# --- a pure function ------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 100),
            st.integers(0, _PURPOSES - 1),
            st.integers(0, 90),
            st.integers(1, 90),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_order_of_calls_does_not_matter(calls):
    """Rounds in any order, of any block, at any width: the number at an index is the same."""
    coins = ProductionCoins([11, 12])
    for number, purpose, start, count in calls:
        fresh = ProductionCoins([11, 12]).uniform(number, purpose, 0, 256)
        got = coins.uniform(number, purpose, start, count)
        assert torch.equal(got, fresh[:, start : start + count])


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 70), st.integers(0, 1), st.sampled_from([0, 0, 0, 7]), st.integers(1, 9)
        ),
        min_size=2,
        max_size=8,
    ),
    st.sampled_from([0, 1, 300]),
)
def test_order_of_normal_numbers_does_not_matter(calls, at_once):
    """Made alone or for rounds ahead, in any order, as many as ever: the same at an index."""
    with pytest.MonkeyPatch.context() as patch:
        coins = ProductionCoins([11, 12])
        for number, side, start, count in calls:
            fresh = ProductionCoins([11, 12]).round(number)[side].normal((16,))
            patch.setattr(coins_module, "_NORMALS", at_once)
            got = coins.round(number)[side].normal((count,), start)
            assert torch.equal(got, fresh[:, start : start + count])
            patch.undo()


def test_rounds_ahead_belong_to_who_sits_in_the_row():
    """Samples that take a row get their own normal numbers, from their own first round on."""
    coins = ProductionCoins([5, 6, 7])
    context = Context.empty(2, 4)
    context.seat([0, 1], [0, 1])
    coins.seat(context, [0, 1])
    before = coins.round(1)[1].normal((3,))
    context.round = 2
    context.seat([0], [2])
    coins.seat(context, [0])
    after = coins.round(2)[1].normal((3,))
    alone = ProductionCoins([5, 6, 7])
    assert torch.equal(before, alone.round(1)[1].normal((3,))[:2])
    assert torch.equal(after[0], alone.round(0)[1].normal((3,))[2])
    assert torch.equal(after[1], alone.round(2)[1].normal((3,))[1])


def test_neighbours_do_not_matter():
    together, alone = numbers([1, -5, 2**70]), numbers([-5])
    assert torch.equal(together[1:2], alone)


def test_equal_seeds_are_equal_rows():
    both = numbers([9, 9])
    assert torch.equal(both[0], both[1])


def test_growth_keeps_earlier_numbers():
    coins = ProductionCoins([3])
    before = coins.uniform(5, ACCEPT, 0, 10).clone()
    coins.uniform(5, ACCEPT, 0, 1000)
    assert torch.equal(coins.uniform(5, ACCEPT, 0, 10), before)


def test_all_numbers_differ():
    """Purposes, rounds across a block's border, indices and seeds."""
    some = numbers([0, 1, -1, 2**63, 10**30], rounds=70).flatten()
    assert len(some.unique()) == len(some)


def test_seeds_of_any_size():
    assert torch.equal(numbers([5]), numbers([5 + 2**64]))  # wrapped, not refused
    assert not torch.equal(numbers([5]), numbers([-5]))


def test_draws_follow_their_index():
    """K draws in one call are those of K calls with `index`."""
    weights = torch.rand(3, 5, 7, dtype=torch.float64) + 0.1
    for side in ProductionCoins([1, 2, 3]).round(4):
        together = side.draw(weights)
        apart = [side.draw(weights[:, k], index=k) for k in range(5)]
        assert torch.equal(together, torch.stack(apart, 1))
        assert torch.equal(side.draw(weights[:, 2:], index=2), together[:, 2:])


def test_width_of_accept_does_not_matter():
    prob, lengths = torch.rand(2, 90), torch.tensor([90, 90])
    for number in (0, 40):
        coins = ProductionCoins([1, 2]).round(number)[1]
        wide = coins.accept(prob, lengths)
        assert torch.equal(coins.accept(prob[:, :3], lengths), wide[:, :3])


# --- proposals and verification are strangers -----------------------------------------------------


def test_proposals_and_verification_draw_differently():
    proposal, verification = ProductionCoins([1]).round(0)
    even = torch.ones(1, 200, 2)
    assert 60 < (proposal.draw(even) == verification.draw(even)).sum() < 140


def test_proposals_and_verification_accept_differently():
    """A drafter that keeps tokens by a coin of its own must not see the verifier's."""
    proposal, verification = ProductionCoins([1]).round(0)
    half, lengths = torch.full((1, 200), 0.5), torch.tensor([200])
    assert 60 < (proposal.accept(half, lengths) == verification.accept(half, lengths)).sum() < 140


@pytest.mark.parametrize("side", [0, 1], ids=["proposal", "verification"])
def test_accept_and_draw_differ(side):
    coins = ProductionCoins([1]).round(0)[side]
    half, lengths = torch.full((1, 200), 0.5), torch.tensor([200])
    kept = coins.accept(half, lengths).long()
    assert 60 < (kept == coins.draw(torch.ones(1, 200, 2))).sum() < 140


# --- uniform and uncorrelated ---------------------------------------------------------------------
# Seeds are fixed, so these never flicker; the bounds are five deviations or p = 1e-4.


def test_uniform():
    flat = numbers(list(range(16))).flatten()
    assert flat.min() >= 0
    assert flat.max() < 1
    assert stats.kstest(flat.numpy(), "uniform").pvalue > 1e-4
    # the last bits too, which a test on values can't see
    low = (flat * 2**53).long() % 256
    assert stats.chisquare(low.bincount(minlength=256).numpy()).pvalue > 1e-4


def test_pairs_are_uniform():
    """Neighbouring indices, rounds, purposes and seeds, in a 16 × 16 table each."""
    some = numbers(list(range(-8, 8)))  # [B, rounds, purposes, width]
    for axis in range(4):
        size = some.shape[axis]
        a = some.narrow(axis, 0, size - 1).flatten()
        b = some.narrow(axis, 1, size - 1).flatten()
        cells = ((a * 16).long() * 16 + (b * 16).long()).bincount(minlength=256)
        assert stats.chisquare(cells.numpy()).pvalue > 1e-4, axis


def test_no_correlation():
    some = numbers(list(range(100, 116))) - 0.5
    for first, second in itertools.combinations(range(_PURPOSES), 2):
        a, b = some[:, :, first].flatten(), some[:, :, second].flatten()
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 5 / math.sqrt(len(a))
    rows = torch.corrcoef(some.flatten(1)) - torch.eye(16)
    assert rows.abs().max() < 5 / math.sqrt(some[0].numel())
    rounds = torch.corrcoef(some.transpose(0, 1).flatten(1)) - torch.eye(32)
    assert rounds.abs().max() < 5 / math.sqrt(some[:, 0].numel())


def test_seeds_that_differ_in_one_bit():
    """Half of the bits change, as they should for a good mixer."""
    for bit in (0, 1, 31, 62, 63):
        both = (numbers([7, 7 ^ (1 << bit)]) * 2**53).long()
        changed = both[0] ^ both[1]
        share = sum(((changed >> k) & 1).double().mean().item() for k in range(53)) / 53
        assert abs(share - 0.5) < 0.01


def test_normal():
    some = torch.cat([ProductionCoins([1, 2]).round(n)[0].normal((64, 8)) for n in range(32)])
    assert some.shape == (64, 64, 8)
    assert stats.kstest(some.flatten().numpy(), "norm").pvalue > 1e-4
    assert abs(some.mean()) < 5 / math.sqrt(some.numel())
    assert abs(some.var() - 1) < 5 * math.sqrt(2 / some.numel())


def test_normal_is_finite_at_the_ends(monkeypatch):
    for u, sign in ((0.0, -1), (BELOW_ONE, 1)):
        monkeypatch.setattr(
            coins_module,
            "_uniform",
            lambda bits, u=u: torch.full(bits.shape, u, dtype=torch.float64),
        )
        end = ProductionCoins([1]).round(0)[0].normal((2,))
        assert ((end * sign > 8) & (end * sign < 9)).all()


def test_normal_follows_row_round_side_and_index():
    """A part of a longer draw is that part; other rounds, sides and rows are strangers."""
    coins = ProductionCoins([3, 4])
    for side in coins.round(7):
        whole = side.normal((6,))
        assert torch.equal(side.normal((2, 2), index=2), whole[:, 2:].view(2, 2, 2))
        alone = ProductionCoins([4])
        assert torch.equal(
            side.noise(torch.tensor([[5], [6]]), 3)[1:],
            alone.round(0)[0].noise(torch.tensor([[6]]), 3),
        )
    several = [side.normal((6,)) for n in (7, 8) for side in coins.round(n)]
    several += [side.noise(torch.tensor([[7, 8]] * 2), 6).flatten(1) for side in coins.round(7)[:1]]
    numbers = torch.cat(several, 1)
    assert len(numbers.unique()) == numbers.numel()


def test_coins_at_places():
    """What a place gets is the same whatever other places are asked for."""
    coins = ProductionCoins([3, 4])
    rows, positions = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 9, 0, 9])
    some = coins.at(rows, positions).round(2)[1].normal((50,))
    alone = ProductionCoins([4]).at(torch.tensor([0]), torch.tensor([9])).round(2)[1].normal((50,))
    assert torch.equal(some[3:], alone)
    assert len(some.unique()) == some.numel()
    assert not torch.isin(some, coins.round(2)[1].normal((50,))).any()


def test_noise_at_places_is_standard_normal():
    """Row, place and number by number; neighbours in every direction are strangers."""
    rows, positions = torch.arange(64).repeat_interleave(16), torch.arange(16).repeat(64)
    coins = ProductionCoins(list(range(64))).at(rows, positions)
    noise = coins.round(0)[0].noise(torch.zeros(len(rows), 1, dtype=torch.long), 160)
    noise = noise.view(64, 16, 20, 8)
    flat = noise.flatten()  # 163,840 numbers
    assert float(flat.mean()) == pytest.approx(0, abs=0.01)
    assert float(flat.var()) == pytest.approx(1, abs=0.015)
    for point in (-2.0, -0.5, 1.0):
        below = float((flat < point).double().mean())
        assert below == pytest.approx(float(torch.special.ndtr(torch.tensor(point))), abs=0.005)
    for dim in range(4):
        first, second = noise.narrow(dim, 0, 1), noise.narrow(dim, 1, 1)
        assert abs(float((first * second).mean())) < 5 / first.numel() ** 0.5
    # apart from what verification and proposals draw of the same token
    for number in range(4):
        for side in coins.round(number):
            assert not torch.isin(side.normal((16,)), flat).any()


# --- accept and draw ------------------------------------------------------------------------------


def test_accept_is_strict():
    lengths = torch.tensor([4])
    prob = torch.tensor([[0.0, 1e-300, 0.5, 1.0]], dtype=torch.float64)
    zero, top = (Constant(u).round(0)[1].accept(prob, lengths) for u in (0.0, BELOW_ONE))
    assert zero.tolist() == [[False, True, True, True]]
    assert top.tolist() == [[False, False, False, True]]
    half = Constant(0.5).round(0)[1].accept(prob, lengths)
    assert half.tolist() == [[False, False, False, True]]


def test_accept_compares_in_double():
    """A coin between 0.5 and the next float32 is not rounded down to 0.5."""
    lengths = torch.tensor([1])
    prob = torch.tensor([[0.5]], dtype=torch.float32)
    assert not Constant(0.5 + 2.0**-40).round(0)[1].accept(prob, lengths).any()
    assert Constant(0.5 - 2.0**-40).round(0)[1].accept(prob, lengths).all()


weights_of = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-30, 1.0), st.integers(1, 3).map(float)),
    min_size=1,
    max_size=12,
).filter(any)
coins_of = st.one_of(
    st.sampled_from([0.0, 2.0**-53, 0.5, 1 - 2.0**-52, BELOW_ONE]),
    st.integers(0, 2**53 - 1).map(lambda k: k * 2.0**-53),
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(weights_of, coins_of, st.sampled_from([torch.float32, torch.float64]))
def test_draw_never_returns_weight_zero(weights, u, dtype):
    row = torch.tensor([[0.0, *weights, 0.0, 0.0]], dtype=dtype)
    token = Constant(u).round(0)[1].draw(row).item()
    assert 0 <= token < row.shape[1]
    assert row[0, token] > 0


@pytest.mark.parametrize("side", [0, 1], ids=["proposal", "verification"])
def test_draw_inverts_the_running_sum(side):
    """On a grid of u, every token is drawn for exactly its share of the points."""
    weights = torch.tensor([0, 3, 0, 1, 4, 0, 2, 0], dtype=torch.float64)  # need not sum to 1
    points = 1000
    tokens = [
        Constant((k + 0.5) / points).round(0)[side].draw(weights[None]).item()
        for k in range(points)
    ]
    counts = torch.tensor(tokens).bincount(minlength=8)
    assert counts.tolist() == (weights * points / weights.sum()).tolist()
    assert tokens == sorted(tokens)


def test_draw_shapes():
    coins = ProductionCoins([1, 2]).round(0)[0]
    assert coins.draw(torch.ones(2, 5)).shape == (2,)
    assert coins.draw(torch.ones(2, 3, 5)).shape == (2, 3)
    assert coins.draw(torch.ones(2, 0, 5)).shape == (2, 0)


def test_draw_of_a_large_vocabulary():
    """In float32 a running sum over 200,000 small weights would lose its tail."""
    weights = torch.full((1, 200_000), 1e-3)
    assert Constant(BELOW_ONE).round(0)[1].draw(weights).item() == 199_999
    middle = Constant(0.5).round(0)[1].draw(weights).item()
    assert abs(middle - 100_000) <= 1
    rare = torch.tensor([[1.0, 2.0**-26]])  # 1 + 2⁻²⁶ is 1 in float32
    assert Constant(BELOW_ONE).round(0)[1].draw(rare).item() == 1


# --- enumerating coins ----------------------------------------------------------------------------


def test_enumerated_law_by_hand():
    """Draw x from (1, 2, 1)/4; keep 0 always, else toss 1/3: heads gives x, tails draws again."""

    def program(coins, rows):
        proposal, verification = coins.round(0)
        first = proposal.draw(torch.tensor([[1.0, 2.0, 1.0]]).double().expand(rows, -1))
        prob = (torch.tensor([3.0, 1.0, 1.0]).double() / 3)[first][:, None]
        kept = verification.accept(prob, torch.ones(rows).long())[:, 0]
        again = torch.where(kept[:, None], torch.tensor([1.0, 0.0]), torch.tensor([3.0, 1.0]))
        second = verification.draw(again.double())
        return list(zip(first.tolist(), kept.tolist(), second.tolist(), strict=True))

    truth = {
        (0, True, 0): 1 / 4,
        (1, True, 0): 1 / 6,
        (1, False, 0): 1 / 4,
        (1, False, 1): 1 / 12,
        (2, True, 0): 1 / 12,
        (2, False, 0): 1 / 8,
        (2, False, 1): 1 / 24,
    }
    for at_once in (1, 3, 4096):
        law = enumerate_law(program, at_once)
        assert law.keys() == truth.keys()  # no branch of probability 0
        assert all(abs(law[x] - truth[x]) < 1e-12 for x in truth)


@pytest.mark.parametrize("shared", [False, True])
def test_many_rows_are_followed_as_one_by_one(shared):
    """Scripts that go on, end between two nodes or have ended; ids that are impossible now."""
    dice = torch.Generator().manual_seed(0)
    rows, nodes, vocab = 40, 3, 9
    weights = torch.rand(rows, nodes, vocab, generator=dice)
    weights[weights < 0.3] = 0
    weights[..., 4] = 1
    if shared:
        weights = weights[:1].expand(rows, -1, -1)
    lengths = torch.randint(0, 6, (rows,), generator=dice).tolist()
    scripts = [tuple(torch.randint(vocab, (n,), generator=dice).tolist()) for n in lengths]
    coins, slow = EnumeratingCoins(scripts), EnumeratingCoins(scripts)
    for _ in range(2):
        drawn = coins.draw(weights)
        assert drawn.tolist() == slow._one_by_one(weights.double().tolist())
        assert coins.pending == slow.pending
        assert coins.probability == pytest.approx(slow.probability, rel=1e-12)
        assert 0 in coins.probability
    assert len(coins.pending) > rows


def test_enumerated_entries_that_are_not_live():
    """They don't branch, and come out both ways over rows, so that code can't lean on them."""
    prob, lengths = torch.full((4, 2), 0.5), torch.ones(4).long()
    coins = EnumeratingCoins([(0,), (0,), (1,), (1,)])
    out = coins.accept(prob, lengths)
    assert out[:, 0].tolist() == [False, False, True, True]
    assert set(out[:, 1].tolist()) == {False, True}
    assert coins.probability == [0.5] * 4
    assert coins.pending == []


def test_enumeration_refuses_what_it_cannot_follow():
    coins = EnumeratingCoins([()])
    with pytest.raises(TypeError, match="quadrature"):
        coins.normal((2,))
    with pytest.raises(ValueError, match="zero"):
        coins.draw(torch.zeros(1, 3))


def test_enumeration_refuses_branches_that_lean_on_their_batch():
    """A row that tosses because its neighbour does would be counted with the wrong probability."""

    def program(coins, rows):
        first = coins.draw(torch.ones(rows, 3))
        if (first == 0).any():  # one row's outcome makes every row toss
            coins.draw(torch.ones(rows, 2))
        return first.tolist()

    assert enumerate_law(program, at_once=1) == pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 1 / 3})
    with pytest.raises(RuntimeError):
        enumerate_law(program)


def test_purposes():
    assert len({PROPOSE, ACCEPT, RECOVER}) == 3
    assert max(PROPOSE, ACCEPT, RECOVER) < _PURPOSES
