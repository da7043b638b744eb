"""Peak memory and energy: what the counters say, and silence where there are none."""

from __future__ import annotations

import pytest
import torch

from mmspec.eval.measure import meters
from mmspec.eval.measure.meters import EnergyMeter, PeakMemory

CPU = torch.device("cpu")


def test_peak_memory_sees_what_was_freed():
    quiet = PeakMemory(CPU).read()
    if not (meters.PROCESS / "clear_refs").exists():  # not Linux
        assert quiet is None
        return
    meter = PeakMemory(CPU)
    block = torch.ones(2**26)  # 256 MiB
    del block
    assert meter.read() - quiet > 200 * 2**20
    assert PeakMemory(CPU).read() - quiet < 100 * 2**20


def test_memory_that_nobody_tells(tmp_path, monkeypatch):
    monkeypatch.setattr(meters, "PROCESS", tmp_path / "nothing")
    assert PeakMemory(CPU).read() is None


@pytest.fixture
def counters(tmp_path, monkeypatch):
    """Two packages with counters that turn over at 1000 J."""
    # a part of a package, and the whole platform, hold nothing of their own
    zones = {"intel-rapl:0": "package-0", "intel-rapl:1": "package-1"}
    for name, kind in (zones | {"intel-rapl:0:0": "core", "intel-rapl:2": "psys"}).items():
        zone = tmp_path / name
        zone.mkdir()
        (zone / "name").write_text(kind + "\n")
        (zone / "energy_uj").write_text("900000000\n")
        (zone / "max_energy_range_uj").write_text("1000000000\n")
    monkeypatch.setattr(meters, "POWERCAP", tmp_path)
    return tmp_path


def test_energy_over_a_turn(counters):
    meter = EnergyMeter(CPU)
    before = meter.read()
    assert before == [900.0, 900.0]
    (counters / "intel-rapl:0" / "energy_uj").write_text("950000000")
    (counters / "intel-rapl:1" / "energy_uj").write_text("20000000")
    assert meter.since(before) == pytest.approx(50 + 120)


def test_no_counters(tmp_path, monkeypatch, counters):
    monkeypatch.setattr(meters, "POWERCAP", tmp_path / "nothing")
    meter = EnergyMeter(CPU)
    assert meter.read() is None
    assert meter.since(None) is None
    monkeypatch.setattr(meters, "POWERCAP", counters)
    meter = EnergyMeter(CPU)
    (counters / "intel-rapl:0" / "energy_uj").unlink()
    assert meter.read() is None
