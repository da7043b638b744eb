"""Parts of the tests that take long, of which CI runs one."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture
def hooks(request):
    plugins = request.config.pluginmanager.get_plugins()
    return next(one for one in plugins if hasattr(one, "in_part"))


def collected(hooks, part, names) -> tuple[list[str], list[str]]:
    """Names of the tests that are left, and of those that are not."""
    here, others = Path(hooks.__file__).parent, []

    class Item(SimpleNamespace):
        __hash__ = object.__hash__

        def get_closest_marker(self, name):
            return "slow" in self.nodeid if name == "slow" else None

    items = [Item(nodeid=name, path=here / "test_a.py") for name in names]
    hook = SimpleNamespace(pytest_deselected=lambda items: others.extend(items))
    config = SimpleNamespace(getoption=lambda name: part, hook=hook)
    hooks.pytest_collection_modifyitems(config, items)
    return [one.nodeid for one in items], [one.nodeid for one in others]


def test_all_parts_together_are_all_and_each_test_is_in_one(hooks):
    quick = [f"quick {n}" for n in range(5)]
    slow = [f"slow {n}" for n in range(40)]
    seen: list[str] = []
    for k in range(4):
        left, others = collected(hooks, (k, 4), quick + slow)
        assert sorted(left + others) == sorted(quick + slow)
        assert {*quick} <= {*left}
        seen += [name for name in left if name in slow]
    assert sorted(seen) == sorted(slow)
    assert collected(hooks, None, quick + slow)[1] == []


def test_a_part_is_named_by_its_number_and_theirs(hooks):
    assert hooks.part("0/8") == (0, 8)
    for wrong in ("8/8", "-1/8", "1", "a/b", "1/2/3"):
        with pytest.raises((ValueError, ArgumentTypeError)):
            hooks.part(wrong)
