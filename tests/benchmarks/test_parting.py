"""The measurement of padded batches."""

from __future__ import annotations

import torch

from benchmarks import parting


def test_both_ways_say_the_same():
    whole, parts = parting._ways(3)
    assert torch.allclose(whole(), parts(), atol=1e-5)


def test_every_width_is_measured(monkeypatch):
    monkeypatch.setattr(parting, "PROMPTS", (5, 1200))
    found = parting.parting(samples=2)
    assert [*found] == ["1 tokens a row", "8 tokens a row"]
    assert all(row["parts_ms"] > 0 < row["whole_over_parts"] for row in found.values())
