"""Another machine's rounding: the same work gives the same bits, another layout others."""

from __future__ import annotations

import pytest
import torch
from rounding import other_rounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_errors_are_of_the_layout_and_of_one_unit(dtype):
    coins = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=coins, dtype=dtype) for size in ((6, 8), (5, 8)))
    strided = torch.stack([weight, weight], -1)[..., 0]
    with other_rounding(1):
        one, again = x @ weight.T, x @ weight.T
        other = x @ strided.T
        alone = x[:2] @ weight.T
    with other_rounding(2):
        elsewhere = x @ weight.T
    assert torch.equal(one, again)
    for different in (other, elsewhere):
        assert not torch.equal(one, different)
        torch.testing.assert_close(one, different, rtol=0, atol=32 * torch.finfo(dtype).eps)
    assert not torch.equal(one[:2], alone)


def test_nothing_stays_patched():
    kernel = torch.nn.functional.linear
    with other_rounding(1):
        assert torch.nn.functional.linear is not kernel
    assert torch.nn.functional.linear is kernel
