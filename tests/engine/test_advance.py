"""Local rules that leave the end of a draft for another round."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from toys import categorical, chains, close

from mmspec.engine.accept import token_naive
from mmspec.engine.accept.local import LocalRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import Opaque
from mmspec.engine.proof.enumeration import enumerate_law


def law_of(drafted, p, law, rule) -> dict:
    """The enumerated law of what one verdict emits."""

    def verify(coins, rows):
        nodes = torch.tensor(drafted).long().expand(rows, -1)
        draft = Draft(nodes, torch.full((rows,), len(drafted)), law(rows))
        laws = torch.tensor(p, dtype=torch.float64).expand(rows, -1, -1)
        verdict = rule.verify(draft, Scores(laws), coins.round(0)[1])
        pairs = zip(verdict.emitted.tolist(), verdict.counts.tolist(), strict=True)
        return [tuple(tokens[:count]) for tokens, count in pairs]

    return enumerate_law(verify)


@settings(max_examples=60, deadline=None)
@given(chains())
def test_advance_by_one_is_the_token_rule(chain):
    """But for the bonus token, which a rule that leaves no room for it does not draw."""
    vocab, drafted, p, q = chain
    if not drafted:
        return
    expected: dict = {}
    for tokens, probability in token_naive.token_rule(drafted, p, q).items():
        cut = tokens[: len(drafted)]
        expected[cut] = expected.get(cut, 0.0) + probability
    rule = LocalRule(4, 1.0, None, 0, "ratio", advance=1)
    assert close(law_of(drafted, p, lambda rows: categorical(q, vocab, rows), rule), expected)


@pytest.mark.parametrize(
    ("good", "advance", "slips", "count"),
    [
        ([True, True, False, True, True], 1, 0, 3),
        ([True, True, False, True, True], 3, 0, 3),
        ([True, True, False, True, True], 4, 0, 4),
        ([False, True, True, True, True], 2, 0, 2),
        ([False, True, True, True, True], 9, 0, 5),
        ([True, True, True, True, True], 2, 0, 5),
        ([False, True, False, True, False], 1, 1, 3),
        ([False, True, False, True, False], 1, 2, 5),
        ([False, False, False, True, True], 1, 1, 2),
        ([False, False, False, True, True], 4, 1, 4),
        ([True, True, False, True, True], 1, 1, 5),
    ],
)
def test_what_joins(good, advance, slips, count):
    """At least `advance` nodes; and those in front of the fallen one too many, and this one."""
    p = torch.zeros(1, 6, 3, dtype=torch.float64)
    p[..., 2] = 0.75
    p[..., 1] = 0.25
    tokens = torch.tensor([[2 if g else 0 for g in good]])  # a token of probability 0 falls
    rule = LocalRule(4, 0.5, None, 0, "threshold", advance, slips)
    draft = Draft(tokens, torch.tensor([5]), Opaque())
    verdict = rule.verify(draft, Scores(p), ProductionCoins([1]).round(0)[1])
    assert verdict.counts.tolist() == [count]
    assert verdict.keep.tolist() == [[g and n < count for n, g in enumerate(good)]]
    assert verdict.accepted.tolist() == [sum(good[:count])]
    assert verdict.last.tolist() == [[verdict.emitted[0, count - 1].item()]]
    for n in range(count):
        assert good[n] == (verdict.emitted[0, n] == tokens[0, n])
