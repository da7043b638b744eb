"""One server for the tests of a module."""

from __future__ import annotations

import pytest
from serving import KEY, LIMITS, running

from mmspec.serve.loading import Offered, local_backend


@pytest.fixture(scope="module")
def backend():
    offered = [Offered("vlm", "embedded-vlm"), Offered("image", "embedded-image")]
    made = local_backend(offered, LIMITS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def address(backend):
    with running(backend, LIMITS, [KEY]) as where:
        yield where
