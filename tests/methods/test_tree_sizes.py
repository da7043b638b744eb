"""Trees of twice and of half the size: their levels, and what a user has set."""

from __future__ import annotations

from itertools import pairwise, product
from types import SimpleNamespace

import pytest

from mmspec import SpecConfig
from mmspec.methods.tree_sizes import sized_trees, widths_near


def nodes(widths):
    """Every node of a level has so many children."""
    total, level = 0, 1
    for width in widths:
        level *= width
        total += level
    return total


@pytest.mark.parametrize(
    ("widths", "wanted", "found"),
    [
        ((1,), 2, (2,)),
        ((3,), 2, (2,)),
        ((1,), 0, (1,)),  # a node has a child
        ((1, 1), 1, (1, 1)),  # on every level
        ((2, 1), 2, (1, 1)),
        ((15,), 20, (16,)),  # and 16 at most
        ((16,), 20, (16,)),
        ((16, 16), 10**6, (16, 16)),
        ((3, 2, 1), 15, (3, 2, 1)),  # as large as wanted already
        ((3, 2, 1), 18, (4, 2, 1)),  # 20 nodes; 21 with one more on another level
        ((3, 2, 1), 21, (3, 3, 1)),
        ((1, 1, 1), 5, (2, 1, 1)),  # 6; 5 would be a level wider than the one before it
        ((2, 1, 1), 4, (1, 1, 1)),
        ((3, 3), 10, (3, 2)),  # 9; the upper level alone would be narrower than the lower one
        ((1, 1), 3, (1, 1)),  # one more child is no nearer
        ((2, 1), 3, (2, 1)),  # nor is one fewer
        ((2, 1, 1), 30, (3, 3, 2)),  # child by child: 10, 15, 21, 30
    ],
)
def test_children_by_level(widths, wanted, found):
    assert widths_near(widths, wanted, nodes) == found


def test_levels_narrow_downwards_and_no_single_child_brings_a_tree_nearer():
    """Of all small trees: as deep as before, and among those that the rule allows a nearest one."""

    def allowed(widths):
        narrows = all(one >= two for one, two in pairwise(widths))
        return narrows and min(widths) >= 1 and max(widths) <= 16

    trees = [widths for widths in product(range(1, 5), repeat=3) if allowed(widths)]
    assert len(trees) == 20
    for widths, wanted in product(trees, range(1, 40)):
        found = widths_near(widths, wanted, nodes)
        assert len(found) == len(widths)
        assert allowed(found)
        off = abs(nodes(found) - wanted)
        assert off <= abs(nodes(widths) - wanted)
        for level, step in product(range(3), (1, -1)):
            other = tuple(width + step * (n == level) for n, width in enumerate(found))
            if allowed(other):
                assert abs(nodes(other) - wanted) >= off


def config(options, most_drafted=8, knob="window", given=None, own=None):
    return SimpleNamespace(
        options=options,
        drafter_options=own,
        drafter=SimpleNamespace(knob=knob),
        config=SimpleNamespace(options=given or {}),
        draft_size=lambda: SimpleNamespace(most_drafted=most_drafted),
    )


def test_nodes_of_twice_and_half_the_size():
    assert sized_trees(config({"tree_nodes": 8})) == [{"tree_nodes": 16}, {"tree_nodes": 4}]
    # of nodes that there are: more are allowed than a shallow tree has
    assert sized_trees(config({"tree_nodes": 9}, 6)) == [{"tree_nodes": 12}, {"tree_nodes": 3}]
    assert sized_trees(config({"tree_nodes": 4}, 2)) == [{"tree_nodes": 1}]  # twice 2 is usual
    assert sized_trees(config({"tree_nodes": 1}, 1)) == [{"tree_nodes": 2}]  # half a node is none
    assert sized_trees(config({"window": 8})) == [{"window": 16}, {"window": 4}]
    assert sized_trees(config({"window": 8, "tree_nodes": 8}))[0] == {"tree_nodes": 16}


def test_what_a_user_has_set_stays_and_what_has_no_size_has_no_other():
    assert sized_trees(config({"tree_nodes": 8}, given={"tree_nodes": 8})) == []
    assert sized_trees(config({"tree_nodes": 8}, given={"temperature": 1})) != []
    assert sized_trees(config({"depth": 8})) == []


def test_widths_of_a_method():
    """Twice and half of 3 + 6 + 6 + 6 nodes; set ones are kept."""
    resolved = SpecConfig("tree").resolve("vlm")
    widths = resolved.options["tree_widths"]
    twice, half = (made["tree_widths"] for made in sized_trees(resolved))
    assert nodes(half) < nodes(widths) < nodes(twice)
    assert twice == widths_near(widths, 2 * nodes(widths), nodes)
    assert half == widths_near(widths, round(nodes(widths) / 2), nodes)
    assert sized_trees(SpecConfig("tree", tree_widths=(3, 2)).resolve("vlm")) == []
