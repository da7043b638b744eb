"""Requests that join a batch, by simulation, against sums done by hand; drafts of hot experts."""

import numpy as np
import pytest

from benchmarks.simulation.batches import POLICIES, SEATS, batch_latency, round_seconds
from benchmarks.simulation.costs import Costs
from benchmarks.simulation.measure import SimulationRecord
from benchmarks.simulation.page import markdown
from benchmarks.simulation.schedules import drafting, plain, seconds_of
from benchmarks.simulation.subject import BITS, Likely, bits_of
from mmspec.models.transformers.tiny import tiny

COSTS = Costs({0: 9.0, 4: 13.0}, {0: 1.0}, {1: 2.0, 11: 4.0})


def known(stands, limit=None):
    """A text whose places stand for sure, or fall."""
    return Likely([float(s) for s in stands], None, limit or len(stands), 0)


def test_a_request_that_is_alone_takes_what_its_schedule_takes():
    texts = [known([1, 1, 0, 1, 1, 1, 1, 0, 0, 1]), known([0, 1, 1])]
    for name, schedule in (("plain", plain), ("draft, 4 tokens", drafting(4))):
        for one in texts:
            alone = seconds_of(schedule, one.drawn(0), COSTS)
            made = POLICIES[name]
            assert batch_latency([one], made, COSTS, 1e9, 20) == pytest.approx(alone)


def test_requests_that_come_at_once_share_their_rounds():
    """A full batch, then as many again: each waits for those in front."""
    one, places = known([0] * 5), 5
    whole = places * round_seconds(COSTS, [0] * SEATS)
    found = batch_latency([one], POLICIES["plain"], COSTS, 0.0, 2 * SEATS)
    assert found == pytest.approx(1.5 * whole)
    assert round_seconds(COSTS, [2, 0, 4]) == 4 * COSTS.drafting(1, 3) + 9 + 8 + 1


def test_under_load_those_who_know_it_take_less_time():
    """Tokens cost, and half of the requests have no luck."""
    costs = Costs({0: 9.0, 4: 9.4, 8: 9.8, 16: 17.8}, {0: 1.0}, {1: 0.5, 8: 0.7})
    coins = np.random.default_rng(0)
    texts = [Likely([c] * 40, None, 40, int(coins.integers(99))) for c in (0.9, 0.9, 0.1, 0.1)]
    took = {name: batch_latency(texts, made, costs, 60.0, 60) for name, made in POLICIES.items()}
    assert took["draft, FASER's lengths"] < took["draft, goodput's length"]
    assert took["draft, goodput's length"] < took["draft, 4 tokens"]


def test_sparse_experts_draft_with_half_of_them():
    class Pipe:
        model = tiny("mixtral", num_local_experts=6)

    assert bits_of(Pipe()) == f"{BITS[:-1]},hot_experts=3]"
    Pipe.model = tiny("llama")
    assert bits_of(Pipe()) == BITS
    record = SimulationRecord({}, 2, 3, 7, (0.0, 0.0), experts={"judging_experts": 3.25})
    assert "| experts that a call of the target touches, of a layer | 3.25 |" in markdown(record)
