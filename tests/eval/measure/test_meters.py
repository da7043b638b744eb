"""Peak memory and energy: what the counters say, and silence where there are none."""

from __future__ import annotations

import pytest
import torch

from mmspec.eval.measure import meters
from mmspec.eval.measure.meters import EnergyMeter, PeakMemory

CPU = torch.device("cpu")


def test_peak_memory_sees_what_was_freed():
    """Against what is resident, read while the block is there.

    A system that is short of memory takes pages of files back and loads them again, some hundred
    MiB of them at any time: what was resident before the block says nothing of later.
    """
    meter = PeakMemory(CPU)
    if not (meters.PROCESS / "clear_refs").exists():  # not Linux
        assert meter.read() is None
        return
    block = torch.ones(2**28)  # 1 GiB
    status = (meters.PROCESS / "status").read_text().splitlines()
    held = 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    assert held > block.nbytes
    del block
    assert meter.read() >= held - 2**24  # Linux counts pages a little late
    assert PeakMemory(CPU).read() < held - 2**29


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
