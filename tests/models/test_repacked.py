"""Packed copies of linear layers give what the layers give, and leave no trace."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mmspec.models import repacked
from mmspec.models.linear import RowLinear
from mmspec.models.repacked import Repacked


class Net(nn.Module):
    """Two linear layers, one of them with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 40, bias=False), nn.Linear(40, 8)

    def forward(self, x):
        return self.second(self.first(x).relu())


@pytest.fixture
def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield Net().eval()


@pytest.fixture
def calls(monkeypatch):
    """Rows of every call on packed weights."""
    seen, forward = [], RowLinear.__call__

    def call(self, x, bias=None):
        seen.append(x.shape[:-1].numel())
        return forward(self, x, bias)

    monkeypatch.setattr(RowLinear, "__call__", call)
    return seen


@torch.inference_mode()
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (3, 5)])
def test_it_is_the_same_function(net, calls, shape):
    x = torch.randn(*shape, 24)
    own = net(x)
    with Repacked().running([net]):
        made = net(x)
    assert made.shape == own.shape
    assert torch.allclose(made, own, atol=1e-6)
    assert calls == [shape[0] * shape[1]] * 2
    assert "forward" not in vars(net.first)
    assert torch.equal(net(x), own)


@torch.inference_mode()
def test_bfloat16_is_packed_where_the_processor_knows_it(calls):
    net = nn.Linear(300, 400, bias=False).bfloat16().eval()
    x = torch.randn(3, 300).bfloat16()
    own = net(x)
    with Repacked().running([net]):
        made = net(x)
    assert made.dtype == torch.bfloat16
    assert torch.allclose(made.float(), own.float(), atol=1e-2, rtol=1e-2)
    assert bool(calls) == torch.ops.mkldnn._is_mkldnn_bf16_supported()


@torch.inference_mode()
def test_changed_weights_are_packed_anew(net, calls):
    packs, x = Repacked(), torch.randn(4, 24)
    with packs.running([net]):
        net(x)
    kept = packs._packed(net.second, None)
    net.first.weight.mul_(2)  # in place
    own = net(x)
    with packs.running([net]):
        assert torch.allclose(net(x), own, atol=1e-6)
    net.first.weight.data = torch.randn(40, 24)  # another tensor
    own = net(x)
    with packs.running([net]):
        assert torch.allclose(net(x), own, atol=1e-6)
    assert packs._packed(net.second, None) is kept


@torch.inference_mode()
def test_what_stays_as_it_is(net, calls, monkeypatch):
    x = torch.randn(4, 24, dtype=torch.float64)
    with Repacked().running([net.double()]):
        net(x)
    monkeypatch.setattr(repacked, "MOST", 100)
    with Repacked().running([net.float()]):
        net(x.float())
    assert calls == []


@torch.inference_mode()
def test_an_error_leaves_no_trace(net):
    def fail():
        with Repacked().running([net]):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert "forward" not in vars(net.second)
