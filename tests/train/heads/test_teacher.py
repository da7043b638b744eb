"""Teachers of draft heads: the law of each row, and the precision that they answer in."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from mmspec.engine.warp import Warp
from mmspec.train.heads.recipe import dtype_of
from mmspec.train.heads.teacher import Teacher
from mmspec.train.trainer import TrainConfig


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seeds", [[7, 0, 5, 2, 4, 1, 3, 6], [8, 12], [1], [3, 3, 2]])
def test_each_row_has_the_law_of_its_own_temperature(seeds, dtype):
    """Also where some temperature has no row."""
    heats = 0.0, 0.4, 0.7, 1.0
    teacher = SimpleNamespace(temperatures=heats, model=SimpleNamespace(device="cpu"))
    logits = torch.randn(len(seeds), 3, 11, generator=torch.manual_seed(0)).to(dtype)
    laws = Teacher.warp(teacher, seeds)(logits)
    assert laws.dtype == torch.float32
    for row, seed in enumerate(seeds):
        assert torch.equal(laws[row], Warp(heats[seed % 4])(logits[row]))


@pytest.mark.parametrize(
    ("precision", "device", "known", "expected"),
    [
        ("bfloat16", "cpu", {"amx_bf16": True}, torch.bfloat16),
        ("bfloat16", "cpu", {"amx_bf16": False}, torch.float32),
        ("bfloat16", "cpu", {"bf16": True}, torch.float32),  # of another architecture
        ("float32", "cpu", {"amx_bf16": True}, torch.float32),
        ("bfloat16", "cuda", {}, torch.bfloat16),
        ("float32", "cuda", {}, torch.float32),
    ],
)
def test_teachers_answer_in_few_bits_where_that_is_quicker(
    precision, device, known, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known)
    config = TrainConfig(tmp_path, steps=1, batch_size=1, device=device, precision=precision)
    assert dtype_of(config) is expected
