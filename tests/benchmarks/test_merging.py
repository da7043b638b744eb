"""Both ways that the benchmark compares give the same."""

from __future__ import annotations

import torch

from benchmarks import merging


def test_both_ways_attend_alike():
    whole, merged = merging._ways(40, 9)
    torch.testing.assert_close(merged(), whole(), rtol=1e-5, atol=1e-6)


def test_every_size_is_measured(monkeypatch):
    monkeypatch.setattr(merging, "LENGTHS", (16, 32))
    found = merging.merging(samples=2)
    assert len(found) == 4
    assert all(one["merged_ms"] > 0 for one in found.values())
