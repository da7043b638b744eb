"""One server for the tests of a module."""

from __future__ import annotations

import pytest
from serving import KEY, LIMITS, running

from mmspec.serve.loading import Offered, local_backend


@pytest.fixture(scope="module")
def backend():
    """Methods that are asked for stay, so that no clock decides these tests."""
    offered = [
        Offered("vlm", "embedded-vlm", "eagle"),
        Offered("image", "embedded-image", "scd"),
    ]
    made = local_backend(offered, LIMITS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def address(backend):
    with running(backend, LIMITS, [KEY]) as where:
        yield where
