"""Load on the server: what is counted, and a short run from the command to its figures."""

from __future__ import annotations

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.serving import Load, _figures, _speedup


def test_figures_of_turns():
    load = Load(3, ["gone"], [30, 60], [1, 0], [0.5, 1.0, 4.0], [1.0, 2.0])
    load.bytes = [100 * 2**20, 130 * 2**20, 133 * 2**20]
    told = _figures(load)
    assert (told["answered"], told["errors"]) == (3, ["gone"])
    assert told["tokens_per_second"] == 30.0
    assert told["tokens_per_second_by_turn"] == [30.0, 30.0]
    assert told["pictures_per_second"] == 0.33
    assert told["seconds_p50_p95_p99"][0] == 1.0
    assert (told["megabytes"], told["megabytes_grown"]) == ([100, 130, 133], 3)


def test_a_speedup_is_paired_by_turn():
    ours = Load(tokens=[20, 60, 30], spent=[1.0, 2.0, 1.0])
    plain = Load(tokens=[10, 10, 10], spent=[1.0, 1.0, 1.0])
    ratio, low, high = _speedup(ours, plain)
    assert ratio == 3.0
    assert 2.0 <= low <= 3.0 <= high


@pytest.mark.slow
def test_two_clients_are_answered_by_both_servers(capsys):
    assert main(["serve", "--clients", "2", "--seconds", "3", "--turns", "2"]) == 0
    record = json.loads(capsys.readouterr().out)
    for name in ("speculative", "plain"):
        assert record[name]["errors"] == []
        assert record[name]["answered"] >= 2
        assert record[name]["tokens_per_second"] > 0
        assert len(record[name]["megabytes"]) == 3
    assert record["speedup"][1] <= record["speedup"][0] <= record["speedup"][2]
