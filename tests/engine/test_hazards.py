"""Hazards that break exactness, put in one by one: each must be seen.

Here are those of one line; others are beside what they would break: a token dropped for its own
probability (test_stopping), siblings judged with the original q or sorted (test_recursive_rule),
drawn siblings re-ranked (test_dynamic), greedy drafts, warped laws, one stream of coins, tokens
after the end, coins that are not strict (test_token_rule).

Block verification's 0/0 at r = 1, p = q can't be seen, whatever is put in its place: the ratio then
stays 1 to the next prefix, and so on to one that stands for certain.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable

import pytest
import torch
from toys import EXACT, Table, TableModel, TableTarget, composed, distance

from mmspec.draft.draft_model import ModelDrafter
from mmspec.engine.accept.block import BlockRule
from mmspec.engine.accept.chain import ratios, recovered_verdict
from mmspec.engine.accept.in_turn import SiblingRule
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins

SEEN = 1e-3
# a name, the rule, the part of it that is changed, its line, and the line with the hazard
LINES = [
    (
        "the residual is sharpened again",
        TokenRule,
        recovered_verdict,
        "return prefix_verdict(draft, accepted, coins.draw(weights))",
        "return prefix_verdict(draft, accepted, coins.draw(weights**2))",
    ),
    (
        "the residual is drawn after a whole draft as well",
        TokenRule,
        recovered_verdict,
        "use = (accepted < draft.lengths) & (residual.sum(-1) > 0)",
        "use = residual.sum(-1) > 0",
    ),
    (
        "the ratio is upside down",
        TokenRule,
        ratios,
        "found / q.gather(-1, index)",
        "q.gather(-1, index) / found",
    ),
    (
        "the ratio is not bounded by 1 on the way",
        BlockRule,
        BlockRule,
        "r = (total - total.cummax(1).values.clamp_min(0)).exp()",
        "r = total.exp().clamp_max(1)",
    ),
    (
        "a fallen sibling leaves p as it was",
        RecursiveRule,
        SiblingRule,
        "return (p - q).clamp_min(0)",
        "return p",
    ),
]


def mutated(rule: type, part: Callable, line: str, hazard: str) -> type:
    """The shipped rule with one line replaced: of its own, of its base, or of a function."""
    source = inspect.getsource(part)
    assert source.count(line) == 1, "the rule no longer has this line"
    changed = dict(vars(sys.modules[part.__module__]))
    exec(source.replace(line, hazard), changed)
    if part is not rule:
        calling = dict(vars(sys.modules[rule.__module__]))
        calling[part.__name__] = changed[part.__name__]
        exec(inspect.getsource(rule), calling)
        changed = calling
    kind: type = changed[rule.__name__]
    return kind


class Alike(Table):
    """A draft model that is the target itself behind one token, and another one elsewhere."""

    def __init__(self, vocab: int, seed: int, target: Table) -> None:
        super().__init__(vocab, seed)
        self.target = target

    def __call__(self, prefix):
        return self.target(prefix) if len(prefix) == 1 else super().__call__(prefix)


def worst(rule: type) -> float:
    found = 0.0
    for seed in range(6):
        target = Table(2, seed)
        for model in (Table(2, seed + 50), Alike(2, seed + 50, target)):
            drafter = ModelDrafter(TableModel(model))
            law = composed(4, TableTarget(target), drafter, rule(), 3)
            found = max(found, distance(law, target.joint(4)))
    return found


@pytest.mark.parametrize("rule", [TokenRule, BlockRule, RecursiveRule])
def test_shipped_rules(rule):
    assert worst(rule) < EXACT


@pytest.mark.parametrize(
    ("rule", "part", "line", "hazard"), [c[1:] for c in LINES], ids=[c[0] for c in LINES]
)
def test_hazards_are_seen(rule, part, line, hazard):
    assert worst(mutated(rule, part, line, hazard)) > SEEN


class HalfCoins(ProductionCoins):
    """Coins in half precision: those above 1 − 2⁻¹² become 1."""

    def uniform(self, number, purpose, start, count):
        return super().uniform(number, purpose, start, count).half()


@pytest.mark.parametrize(("kind", "wrong"), [(ProductionCoins, False), (HalfCoins, True)])
def test_coins_in_half_precision_reject_what_is_certain(kind, wrong):
    rows, width = 64, 512
    verification = kind(list(range(rows))).round(0)[1]
    certain = torch.ones(rows, width)
    stood = verification.accept(certain, torch.full((rows,), width))
    assert bool((~stood).any()) is wrong
