"""Counts of accepted tokens: means and errors against the drafts themselves, and noise."""

from __future__ import annotations

import numpy as np
import pytest

from mmspec.doctor.report import Diagnosis
from mmspec.doctor.tally import Tally
from mmspec.doctor.vocabulary import constant, refitted

DEPTH = 4


def drawn(rng, drafts: int, rate: float) -> tuple[np.ndarray, Tally]:
    """Accepted tokens of drafts whose every token stands at a rate, and their tally."""
    stood = rng.random((drafts, DEPTH)) < rate
    lengths = stood.cumprod(1).sum(1)
    accepted = tuple(int((lengths > n).sum()) for n in range(DEPTH))
    judged = tuple(int((lengths >= n).sum()) for n in range(DEPTH))
    return lengths, Tally(judged, accepted)


def test_mean_and_error_are_those_of_the_drafts():
    lengths, tally = drawn(np.random.default_rng(0), 200, 0.7)
    assert tally.tokens_per_call == pytest.approx(1 + lengths.mean())
    assert tally.error == pytest.approx(lengths.std() / np.sqrt(200))


def test_noise_is_told_from_a_difference():
    rng = np.random.default_rng(1)
    same = [drawn(rng, 60, 0.6)[1].far_above(drawn(rng, 60, 0.6)[1]) for _ in range(2000)]
    assert sum(same) < 10  # three standard errors, one-sided: 3 are expected
    better = [drawn(rng, 60, 0.8)[1].far_above(drawn(rng, 60, 0.4)[1]) for _ in range(200)]
    assert sum(better) > 195


def test_nothing_is_certain_after_a_few_drafts():
    none, all_ = Tally((3, 0), (0, 0)), Tally((3, 3), (3, 3))
    assert none.error > 0
    assert none.first_at_most > 0.3
    assert not Tally((2,), (1,)).far_above(Tally((2,), (0,)))
    assert all_.tokens_per_call == 3
    assert Tally((), ()).tokens_per_call == 1


def test_a_map_is_refitted_on_one_half_and_judged_on_the_other():
    rng = np.random.default_rng(2)
    said = rng.integers(0, 9, 400)
    order = rng.permutation(9)
    pairs = [(int(order[token]), int(token)) for token in said]
    fitted = refitted(pairs)
    assert fitted.accepted_at == fitted.judged_at == (400,)
    unrelated = [(int(rng.integers(0, 9)), int(token)) for token in said]
    assert refitted(unrelated).first < 0.3
    assert not refitted(unrelated).far_above(constant(unrelated))


def test_of_a_check_with_a_fault_nothing_else_is_fine():
    told = Diagnosis("target", "head")
    told.add("format", "fine", "EAGLE-3")
    told.add("layers", "fine", "reads 1, 2, 3")
    told.add("layers", "fault", "off by one")
    assert [line.split()[:2] for line in told.lines()] == [
        ["FAULT", "layers"],
        ["ok", "format"],
        ["note", "layers"],
    ]
    assert not told.as_dict()["healthy"]
