"""Two ways to route at equal drafted shares: against loops, and against clips really mixed."""

from __future__ import annotations

import numpy as np
import pytest

from mmspec.eval.measure.bootstrap import ROUNDS
from mmspec.eval.measure.equal_share import Routed, at_equal_share


def routed(name: str, share: float, seed: int, n: int = 40, quality: float = 0.9) -> Routed:
    """Clips of twelve blocks; the more are drafted the worse."""
    rng = np.random.default_rng(seed)
    shares = rng.binomial(12, share, n) / 12
    return Routed(name, shares, quality - 0.4 * shares**2 + rng.normal(0, 0.05, n))


PLAIN = Routed("plain", np.zeros(40), np.full(40, 0.9))
RUNGS = [routed("most", 0.8, 2), PLAIN, routed("some", 0.3, 1)]


def test_gain_and_interval_are_those_of_loops():
    mine = routed("mine", 0.5, 3, quality=1.0)
    found = at_equal_share(mine, RUNGS)
    some, most = RUNGS[2], RUNGS[0]
    assert found.rows == ["some", "most"]

    def gain(picked):
        low, own, high = (float(np.mean([r.shares[i] for i in picked])) for r in (some, mine, most))
        w = (own - low) / (high - low)
        values = [mine.scores[i] - (1 - w) * some.scores[i] - w * most.scores[i] for i in picked]
        return float(np.mean(values)), w

    value, weight = gain(range(40))
    assert (found.value, found.weight) == (pytest.approx(value), pytest.approx(weight))
    assert 0 < weight < 1
    rng = np.random.default_rng(0)
    many = [gain(picked)[0] for picked in rng.integers(0, 40, (ROUNDS, 40))]
    assert found.ci95 == pytest.approx(tuple(np.percentile(many, [2.5, 97.5])))
    assert found.ci95[0] > 0  # it is better, and that is seen


def test_the_mixture_is_what_routing_so_would_give():
    """Clips are assigned to the two rows at random: drafted share and score on average."""
    mine = routed("mine", 0.5, 3)
    found = at_equal_share(mine, RUNGS)
    low, high = RUNGS[2], RUNGS[0]
    takes_high = np.random.default_rng(5).random((20_000, 40)) < found.weight
    share = np.where(takes_high, high.shares, low.shares).mean()
    score = np.where(takes_high, high.scores, low.scores).mean()
    assert share == pytest.approx(mine.shares.mean(), abs=2e-3)
    assert found.value == pytest.approx(mine.scores.mean() - score, abs=2e-3)


def test_a_row_against_itself_gains_nothing():
    mine = routed("mine", 0.5, 3)
    again = Routed("again", mine.shares, mine.scores)
    found = at_equal_share(mine, [PLAIN, again])
    assert (found.rows, found.weight) == (["plain", "again"], 1)
    assert found.value == pytest.approx(0, abs=1e-12)
    assert found.ci95 == pytest.approx((0, 0), abs=1e-12)


def test_a_row_that_drafts_more_than_all_is_mixed_itself():
    """With plain, clip by clip at random: as much as the other's last row, and how much better."""
    mine = routed("mine", 0.95, 3, quality=1.0)
    found = at_equal_share(mine, RUNGS)
    most = RUNGS[0]
    assert (found.rows, found.against) == (["plain", "mine"], "most")
    takes_mine = np.random.default_rng(5).random((20_000, 40)) < found.weight
    share = np.where(takes_mine, mine.shares, PLAIN.shares).mean()
    score = np.where(takes_mine, mine.scores, PLAIN.scores).mean()
    assert share == pytest.approx(most.shares.mean(), abs=2e-3)
    assert found.value == pytest.approx(score - most.scores.mean(), abs=2e-3)
    assert found.ci95[0] < found.value < found.ci95[1]


@pytest.mark.parametrize("share", [0.4, 0.7, 0.95])
def test_two_ways_gain_what_the_other_loses(share):
    """Each of one row and plain: whichever drafts more is mixed, and the figures mirror."""
    mine, other = routed("mine", share, 3), routed("other", 0.6, 4)
    one, two = at_equal_share(mine, [PLAIN, other]), at_equal_share(other, [PLAIN, mine])
    assert one.value == pytest.approx(-two.value)
    assert one.ci95 == pytest.approx((-two.ci95[1], -two.ci95[0]))
    assert {one.against, two.against} == ({None, "mine"} if share < 0.6 else {None, "other"})
    assert one.rows == two.rows == ["plain", "other" if share < 0.6 else "mine"]


def test_nothing_is_said_beyond_the_rows():
    everything = Routed("all", np.ones(40), np.full(40, 0.5))
    assert at_equal_share(everything, [PLAIN, Routed("none", np.zeros(40), np.ones(40))]) is None
    assert at_equal_share(Routed("none", np.zeros(40), np.ones(40)), RUNGS) is None
    assert at_equal_share(routed("mine", 0.5, 3), [PLAIN]) is None


def test_few_clips_have_no_interval():
    def first(of: Routed, n: int) -> Routed:
        return Routed(of.name, of.shares[:n], of.scores[:n])

    mine, rungs = routed("mine", 0.5, 3), RUNGS
    assert at_equal_share(first(mine, 5), [first(r, 5) for r in rungs]).ci95 is None
    # of six clips one drafts: resamples without it have no weight
    seldom = Routed("seldom", np.array([0, 0, 0, 0, 0, 0.5]), np.ones(6))
    rare = Routed("rare", np.array([0, 0, 0, 0, 0, 0.4]), np.ones(6))
    found = at_equal_share(rare, [first(PLAIN, 6), seldom])
    assert (found.ci95, found.weight) == (None, pytest.approx(0.8))
