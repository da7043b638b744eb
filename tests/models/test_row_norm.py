"""Rows normed in few operators: the values of torch's own norm, on inputs of every kind."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mmspec.models.row_norm import RowNorm

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_it_is_torchs_norm(dtype, size):
    """Of rows so small that `eps` is most of their mean, too, and of views."""
    rows = size * torch.randn(2, 3, 5, 48, generator=torch.Generator().manual_seed(0))
    x = rows.clamp(-6e4, 6e4).to(dtype).transpose(1, 2)[:, :, 1:]
    weight = torch.linspace(0.5, 2, 2 * 48).view(2, 48).to(dtype)
    norm = RowNorm(1e-5)
    near = {"rtol": 2e-2 if dtype.itemsize == 2 else 1e-6, "atol": 0}
    torch.testing.assert_close(norm(x), F.rms_norm(x, (48,), eps=1e-5), **near)
    for own in (weight, weight[0]):  # of a head each, and of all
        want = F.rms_norm(x, (48,), eps=1e-5) * own
        assert norm(x, own).dtype == dtype
        torch.testing.assert_close(norm(x, own), want, **near)


def test_a_row_of_zeros_stays_one():
    assert RowNorm(1e-6)(torch.zeros(2, 8)).eq(0).all()
