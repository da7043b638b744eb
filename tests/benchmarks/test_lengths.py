"""Length policies played on recorded acceptances: sums done by hand, and a real record."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.lengths.measure import fitted
from benchmarks.lengths.play import MOST, SYNTHETIC, Recorded, compare, ways, written
from benchmarks.lengths.rounds import Machine, Played, RoundCost
from mmspec.engine.length.constant import ConstantLength
from mmspec.errors import InputError

COST = RoundCost(1.0, 0.1, 0.05, 0.01)


def sure(stands: list[int]) -> Recorded:
    """A text whose places stand for sure, or fall."""
    return Recorded([float(s) for s in stands], [[0.5, 0.5]] * len(stands))


def texts(chance: float, count: int = 3) -> list[Recorded]:
    law = [chance, (1 - chance) / 2, (1 - chance) / 2]
    return [Recorded([chance] * length, [law] * length) for length in range(60, 60 + count)]


def test_a_play_is_a_sum_of_rounds():
    machine, total = Machine(COST, 0.0, np.random.default_rng(0)), Played()
    both = [sure([1, 1, 0, 1, 1, 1]), sure([0, 1, 1])]
    coins = [np.full(len(text.stands), 0.5) for text in both]
    written(machine, ConstantLength(2), both, coins, total)
    # 3 and 1 tokens; then 3 and 2, for the second has room for one draft; both are over
    assert (total.tokens, total.rounds, total.drafted) == (9, 2, 2)
    rounds = [COST.seconds(2, 2), COST.seconds(2, 2)]
    assert total.seconds == pytest.approx(sum(rounds))
    assert machine.now == total.seconds
    assert COST.seconds(2, 3) == pytest.approx(1 + 0.1 * 2 * 4 + 3 * (0.05 + 0.01 * 2))


@pytest.mark.parametrize("kind", SYNTHETIC)
def test_policies_beside_the_best_length_in_hindsight(kind):
    found = compare(texts(0.8), SYNTHETIC[kind], (1, 16), calls=6)
    assert list(found.speedups) == ways()
    for rows in (1, 16):
        fixed = [found.speedups[name][rows] for name in ways() if name[0].isdigit()]
        best = max(1.0, *fixed)
        assert found.speedups["plain"][rows] == 1.0
        for name in ways():
            told = best / found.speedups[name][rows] - 1
            assert found.regrets[name][rows] == pytest.approx(told)
        for name in ("goodput (SmartSpec)", "speckv", "faser"):
            assert found.regrets[name][rows] < 0.15
        assert found.speedups["auto"][rows] > 0.95
    assert found.speedups["auto"][1] > 1


def test_useless_drafts_cost_little_whoever_finds_out():
    found = compare(texts(0.0), SYNTHETIC["busy"], (1, 8), calls=6)
    for name in ("goodput (SmartSpec)", "speckv", "auto"):
        assert min(found.speedups[name].values()) > 0.95
    assert max(found.speedups["heuristic"].values()) < 0.9


def test_costs_are_fitted_and_none_is_below_0():
    rounds = [(r, w, COST.seconds(r, w)) for r in (1, 4, 16) for w in (0, 1, 2, 4, MOST)]
    found = fitted(rounds)
    assert (found.fixed, found.token) == pytest.approx((COST.fixed, COST.token))
    assert (found.call, found.row) == pytest.approx((COST.call, COST.row))
    flat = fitted([(r, w, 2.0 - 0.001 * w * r) for r, w, _ in rounds])
    assert min(flat.fixed, flat.token, flat.call, flat.row) >= 0
    with pytest.raises(InputError, match="too short to time"):
        fitted(rounds[:3])


def test_the_command_reads_a_record(tmp_path, capsys):
    record = tmp_path / "acceptances.json"
    record.write_text(json.dumps([{"stands": [0.9] * 40, "laws": [[0.9, 0.1]] * 40}]))
    how = ["lengths", "--recorded", str(record), "--batches", "1,4", "--calls", "2"]
    assert main([*how, "--costs", "idle,busy", "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "batch 4" in said
    assert "auto" in said
    page = (tmp_path / "out" / "lengths.md").read_text()
    assert "Simulated" in page
    assert page.count("| speckv |") == 2
    told = json.loads((tmp_path / "out" / "lengths.json").read_text())
    assert set(told["found"]) == {"idle", "busy"}
    assert told["stands"] == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--costs", "free"], "unknown costs 'free'"),
        (["--recorded", "none.json", "--costs", "measured"], "costs are measured on a model"),
        (["--recorded", "none.json"], "can't read none.json as recorded acceptances"),
        (["--recorded", "none.json", "--model", "smollm2"], "leave one of them out"),
        (["--noise", "1"], "--noise from 0 to below 1"),
    ],
)
def test_what_can_not_be_is_said(options, told, tmp_path, capsys):
    assert main(["lengths", *options, "-o", str(tmp_path / "out")]) == 2
    assert told in capsys.readouterr().err


def test_a_model_is_recorded_and_its_rounds_are_timed(tiny_folder, tmp_path, capsys):
    how = ["lengths", "--samples", "2", "--costs", "measured", "--batches", "1", "--calls", "1"]
    how += ["--suite", "speed", "--model", str(tiny_folder), "-o", str(tmp_path / "out")]
    assert main(how) == 0
    said = json.loads((tmp_path / "out" / "acceptances.json").read_text())
    assert len(said) == 2
    for one in said:
        assert len(one["stands"]) == len(one["laws"]) > 8
        assert all(0 <= chance <= 1 for chance in one["stands"])
        assert all(sum(law) == pytest.approx(1, abs=1e-5) for law in one["laws"])
    told = json.loads((tmp_path / "out" / "lengths.json").read_text())
    assert told["costs"]["measured"]["fixed"] >= 0
    assert "measured" in capsys.readouterr().out
