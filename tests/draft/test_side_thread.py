"""The thread beside the caller's works as the caller would."""

from __future__ import annotations

import threading

import pytest
import torch

from mmspec.draft.side_thread import SideThread

CPU = torch.device("cpu")


@pytest.fixture
def side():
    made = SideThread(CPU)
    yield made
    made.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_the_callers(side, dtype):
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with torch.autocast("cpu", dtype):
        found = side.submit(lambda: x @ x).result()
    assert found.dtype == dtype
    plain = side.submit(lambda: x @ x).result()
    assert torch.equal(plain, x @ x)
    assert found.is_inference()
    assert plain.is_inference()


def test_errors_are_the_futures(side):
    def broken():
        raise RuntimeError("out of memory")

    found, next_one = side.submit(broken), side.submit(lambda: torch.ones(1))
    assert isinstance(found.exception(), RuntimeError)
    assert next_one.result() == 1


def test_what_has_not_begun_is_dropped():
    side, begun, go_on = SideThread(CPU), threading.Event(), threading.Event()

    def slow():
        begun.set()
        assert go_on.wait(60)
        return torch.ones(1)

    first, second = side.submit(slow), side.submit(slow)
    assert begun.wait(60)
    threading.Timer(0.01, go_on.set).start()
    side.close()
    assert first.result() == 1
    assert second.cancelled()
    with pytest.raises(RuntimeError):
        side.submit(slow)
