"""Lengths that go by what calls take leave the law of the output as it is: enumerated."""

from __future__ import annotations

import pytest
from toys import EXACT, Table, TableTarget, distance, drafters, whole_loop

from mmspec.engine.length.faser import FaserLength
from mmspec.engine.length.goodput import Experience, GoodputLength


def newborn(kind: type[GoodputLength]) -> GoodputLength:
    """A policy for which every enumerated run is the first one: no earlier one, and no clock."""

    class Newborn(kind):
        def start(self, rows: int) -> None:
            self.experience = Experience([1, 1.3, 1.6, 1.9])
            super().start(rows)

    return Newborn(Experience([1, 1.3, 1.6, 1.9]), news=0)


@pytest.mark.parametrize("name", ["model", "jacobi-previous", "coupled"])
@pytest.mark.parametrize("kind", [GoodputLength, FaserLength])
def test_joint_law(kind, name):
    target, drafter = Table(2, 7), drafters(2, Table(2, 8))[name]
    law = whole_loop(4, TableTarget(target), drafter, length=newborn(kind))
    assert distance(law, target.joint(4)) < EXACT
