"""The largest drafts that a memory budget has room for, and their law."""

from __future__ import annotations

import itertools

import pytest
from toys import EXACT, Table, TableModel, TableTarget, distance, whole_loop

from mmspec import SpecConfig
from mmspec.engine.length.constant import ConstantLength
from mmspec.errors import InputError
from mmspec.methods import config_of
from mmspec.methods.config import all_options
from mmspec.methods.memory_budget import fitted


def laws(size) -> int:
    return size.most_drafted + size.most_drawn


@pytest.mark.parametrize("budget", range(2, 44))
def test_a_fixed_tree_is_the_largest_of_its_kind(budget):
    """No tree of the first levels, with no node of more children than some number, has more."""
    config = config_of(f"tree[memory_budget={budget}]").resolve("image")
    made = fitted(config, laws).draft_size()
    widths = config.options["tree_widths"]
    sizes = []
    for depth, most in itertools.product(range(1, 5), range(1, 4)):
        cut = [min(width, most) for width in widths[:depth]]
        sizes.append(sum(itertools.accumulate(cut, int.__mul__)))
    assert made.most_drafted == max(n for n in sizes if 2 * n <= budget)


@pytest.mark.parametrize("length", ["constant", "heuristic", "goodput"])
def test_a_chain_has_as_many_tokens_as_fit(length):
    for budget in range(2, 50):
        config = SpecConfig("draft", length=length, memory_budget=budget).resolve("vlm")
        made = fitted(config, laws)
        asked = config.draft_size().most_drafted
        assert made.draft_size().most_drafted == min(asked, budget // 2)
        assert (made is config) == (asked <= budget // 2)


def test_trees_that_grow_are_cut_in_all_ways():
    made = fitted(config_of("dynamic-tree[memory_budget=20]").resolve("image"), laws)
    size = made.draft_size()
    assert laws(size) == 20  # levels of 2, 4 and 4: as many are drawn as kept
    found = fitted(config_of("aded[memory_budget=13]").resolve("vlm"), laws)
    assert found.draft_size().most_drafted == 13  # found in the text: without laws of its own


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("64MB", 64e6), ("1.5 KiB", 1536), ("2g", 2e9), ("77", 77), ("8TiB", 2**43)],
)
def test_a_budget_is_a_text_or_a_number(text, bytes_):
    assert SpecConfig("draft", memory_budget=text) == SpecConfig("draft", memory_budget=int(bytes_))
    assert config_of(f"draft[memory_budget={text}]").options["memory_budget"] == bytes_
    option = all_options()["memory_budget"]
    assert option.check(None) is None
    assert option.letter == "BYTES"


@pytest.mark.parametrize("wrong", ["much", "5 apples", "-3", "1.5.2MB", "0", 0, 1.5, True, ""])
def test_what_is_no_budget(wrong):
    with pytest.raises(InputError, match="memory_budget must be"):
        SpecConfig("draft", memory_budget=wrong)


@pytest.mark.parametrize("method", ["plain", "drafter-only", "zipar", "cspd", "sdvg"])
def test_what_drafts_no_tokens_reads_none(method):
    with pytest.raises(InputError, match=f"memory_budget .* method '{method}' does not read it"):
        SpecConfig(method, memory_budget="1GB")


@pytest.mark.parametrize("siblings", ["without-replacement", "independent", "top"])
def test_a_tree_within_a_budget_has_the_target_s_law(siblings):
    target, model = Table(3, 5), TableModel(Table(3, 6))
    config = SpecConfig("tree", tree_widths=(2, 2), siblings=siblings, memory_budget=8)
    config = fitted(config.resolve("image"), laws)
    assert config.draft_size().most_drafted == 2
    offers = {"model": lambda: model}
    law = whole_loop(
        3,
        TableTarget(target),
        lambda: config.build_drafter(offers),
        config.build_rule(offers),
        ConstantLength(config.draft_size().deepest),
    )
    assert distance(law, target.joint(3)) < EXACT
