"""LANTERN and LANTERN++ as released: equal to the twin, by hand, and how far from the target."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_lantern import everybody, first_tokens, measured, table_tensor, tables, tv
from test_recursive import LAWS, tree_law, trees
from toys import EXACT, close, one_hot, probs, rule_law

from mmspec.engine.accept.lantern import naive as lantern_naive
from mmspec.engine.accept.lantern.lantern import LanternPlusPlusRule, LanternRule
from mmspec.engine.accept.lantern.released import ReleasedLanternRule
from mmspec.engine.laws import OneHot, WithoutReplacement
from mmspec.errors import InputError
from mmspec.methods import SpecConfig
from mmspec.pipelines.parts import nearest_codes

# at which no sum of a random law lies on the bound itself
KNOBS = [{"delta": 0.0613}, {"delta": 0.3911}, {"delta": 1.0}, {"lam": 1.3717}, {"lam": 19.37}]


@pytest.mark.parametrize("kind", LAWS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), st.integers(0, 1))
def test_tree_equals_naive(kind, data, filling):
    vocab, drafted, parents, p, q = data.draw(trees(kind))
    table, knob = data.draw(tables(vocab)), data.draw(st.sampled_from(KNOBS))
    k = data.draw(st.integers(0, len(table[0])))
    replacement = LAWS[kind] is not WithoutReplacement
    truth = lantern_naive.lantern_released_rule(
        drafted, parents, p, q, table, k, **knob, replacement=replacement
    )
    rule = ReleasedLanternRule(table_tensor(table), k, **knob)
    assert close(tree_law(vocab, drafted, parents, p, q, kind, filling, rule), truth)
    assert sum(truth.values()) == pytest.approx(1, abs=EXACT)


P, BEHIND, NEAR = [0.4, 0.1, 0.2, 0.3], [1.0, 0.0, 0.0, 0.0], torch.tensor([[1, 2, 3]] * 4)


def test_chosen_by_hand():
    """δ = .15, k = 1: 1 is pooled, 0 stands with .5; after a fall 0, 1 and also 2 are empty."""
    law = rule_law([0], [P, BEHIND], OneHot(), ReleasedLanternRule(NEAR, 1, 0.15))
    assert close(law, {(0, 0): 0.5, (3,): 0.5})
    paper = rule_law([0], [P, BEHIND], OneHot(), LanternRule(NEAR[:, :1], 0.15))
    assert close(paper, {(0, 0): 0.5, (2,): 0.5 * 0.4, (3,): 0.5 * 0.6})


def test_drawn_by_hand():
    """λ = 1.5, k = 1, q = (.8, .2, 0, 0): .2 may be pooled, which is 1 alone, and 0 stands with
    .5 / .8; after a fall q is (.8, 0, 0, 0), so that p becomes (0, .1, .2, .3) / .6."""
    q = [0.8, 0.2, 0.0, 0.0]
    law = lantern_naive.lantern_released_rule(
        [0], [-1], [P, BEHIND], [q], NEAR.tolist(), 1, lam=1.5
    )
    fall = 1 - 0.5 / 0.8
    wanted = {(0, 0): 1 - fall, (1,): fall / 6, (2,): fall / 3, (3,): fall / 2}
    assert close(law, wanted)
    paper = lantern_naive.lantern_plus_plus_rule(
        [0], [-1], [P, BEHIND], [q], NEAR[:, :1].tolist(), 1.5
    )
    assert close(paper, {(0, 0): 1 - fall, (2,): fall * 0.4, (3,): fall * 0.6})


def test_token_of_probability_zero_is_credited():
    """Which the papers' rules never do: id 0 can't be, and is emitted by its neighbour's chance."""
    p = [0.0, 0.25, 0.75]
    near = torch.tensor([[1, 2], [0, 2], [1, 0]])
    law = rule_law([0], [p, p], OneHot(), ReleasedLanternRule(near, 1, 0.3))
    # after the fall 1 and 2, the k + 1 nearest, are empty: nothing is left, all codes are alike
    fall = 0.75 / 3
    wanted = {(0, 1): 0.25 * 0.25, (0, 2): 0.25 * 0.75, (0,): fall, (1,): fall, (2,): fall}
    assert close(law, wanted)
    assert close(rule_law([0], [p, p], OneHot(), LanternRule(near, 0.3)), {(1,): 0.25, (2,): 0.75})


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), st.integers(0, 4), st.integers(0, 4))
def test_variation_of_one_chosen_token(data, x, k):
    """It is enumerated as evaluation does: the pooled mass, and what is emptied unpooled moves."""
    p = data.draw(probs(5))
    near, delta = everybody(5), 0.3911
    law = measured(ReleasedLanternRule(near, k, delta), p, one_hot(x, 5))
    pool = [n for n in range(k + 1) if sum(p[y] for y in near[x, :n]) <= delta][-1]
    stands = min(1.0, p[x] + sum(p[y] for y in near[x, :pool].tolist()))
    gone = {x, *(near[x, : k + 1].tolist() if pool else [])}
    rest = [0.0 if y in gone else p[y] for y in range(5)]
    rest = rest if sum(rest) else [1.0] * 5
    wanted = [stands * (y == x) + (1 - stands) * rest[y] / sum(rest) for y in range(5)]
    assert tv(law, wanted) < EXACT
    assert tv(law, p) == pytest.approx(
        sum(abs(a - b) for a, b in zip(wanted, p, strict=True)) / 2, abs=EXACT
    )


def test_it_bends_the_law_further_than_the_paper():
    """The same draft, the same δ: the mean total variation over random laws."""
    generator = torch.Generator().manual_seed(0)
    near, gap = everybody(6), []
    for _ in range(20):
        p = torch.rand(6, generator=generator, dtype=torch.float64).pow(3)
        p = (p / p.sum()).tolist()
        q, x = [0.0] * 6, [2]
        q[2] = 1.0
        laws = [
            first_tokens(tree_law(6, x, [-1], [p, p], [q], "top", rule=rule))
            for rule in (ReleasedLanternRule(near, 2, 0.2), LanternRule(near[:, :2], 0.2))
        ]
        gap.append(tv(laws[0], p) - tv(laws[1], p))
    assert min(gap) >= -EXACT
    assert sum(gap) / len(gap) > 0.05


def test_it_is_chosen_by_its_knob():
    codes = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    offers = {"nearest": lambda: nearest_codes(lambda: codes)}
    for method, paper in (("lantern", LanternRule), ("lantern++", LanternPlusPlusRule)):
        config = SpecConfig(method, neighbours=4).resolve("image")
        assert type(config.build_rule(offers)) is paper
        config = SpecConfig(method, neighbours=4, lantern_variant="released").resolve("image")
        rule = config.build_rule(offers)
        assert type(rule) is ReleasedLanternRule
        assert (rule.near.shape, rule.emptied.shape) == ((9, 4), (9, 5))
        assert (rule.delta, rule.lam) == ((0.1, 1.0) if method == "lantern" else (None, 2.0))
        assert rule.contract == "lossy"
        with pytest.raises(InputError, match="at temperature 0"):
            config.build_rule(offers, temperature=0.0)
    with pytest.raises(InputError, match="known: paper, released"):
        SpecConfig("lantern", lantern_variant="other")
