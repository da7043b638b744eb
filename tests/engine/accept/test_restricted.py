"""The restricted rule: equal to its twin, exact for any early law; the published pruning is not."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import (
    EXACT,
    Table,
    TableModel,
    TableTarget,
    categorical,
    chains,
    close,
    distance,
    one_hot,
    probs,
    rule_law,
    whole_loop,
)

from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.prompt_lookup import PromptLookupDrafter
from mmspec.engine.accept import restricted_naive, token_naive
from mmspec.engine.accept.restricted import RestrictedRule
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import ContractError, OneHot
from mmspec.engine.length.constant import ConstantLength

LEAST = st.sampled_from([0.0, 0.05, 0.3, 0.7, 1.0])


class Early:
    """The rule as it is, and scores that have early laws."""

    def __init__(self, early: list[list[float]], least: float) -> None:
        self.rule, self.early = RestrictedRule(None, least), early

    def verify(self, draft, scores, coins):
        rows = len(scores.laws)
        early = [*self.early, *self.early[-1:] * (draft.nodes + 1 - len(self.early))]
        scores.early = torch.tensor(early, dtype=torch.float64).expand(rows, -1, -1)
        return self.rule.verify(draft, scores, coins)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data(), chains(), LEAST, st.integers(0, 1))
def test_law_equals_naive(data, chain, least, filling):
    vocab, drafted, p, q = chain
    early = [data.draw(probs(vocab)) for _ in p]
    law = categorical(q + [[0.0] * vocab] * filling, vocab)
    truth = restricted_naive.restricted_rule(drafted, p, q, early, least)
    assert close(rule_law(drafted, p, law, Early(early, least), filling), truth)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data(), chains(), LEAST)
def test_one_hot_law_equals_naive(data, chain, least):
    vocab, drafted, p, _ = chain
    early = [data.draw(probs(vocab)) for _ in p]
    q = [one_hot(x, vocab) for x in drafted]
    truth = restricted_naive.restricted_rule(drafted, p, q, early, least)
    assert close(rule_law(drafted, p, OneHot(), Early(early, least)), truth)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(chains())
def test_without_a_threshold_it_is_the_token_rule(chain):
    vocab, drafted, p, q = chain
    law = rule_law(drafted, p, categorical(q, vocab), Early(p, 0.0))
    assert close(law, token_naive.token_rule(drafted, p, q))


def test_early_laws_are_needed():
    draft = Draft(torch.zeros(1, 1).long(), torch.tensor([1]), OneHot())
    with pytest.raises(ContractError, match="needs an early layer's laws"):
        RestrictedRule(None, 0.1).verify(draft, Scores(torch.ones(1, 2, 3) / 3), None)


# --- one step in closed form ----------------------------------------------------------------------


def law_of(rng: random.Random, vocab: int) -> list[float]:
    weights = [rng.expovariate(1) for _ in range(vocab)]
    return [w / sum(weights) for w in weights]


def step(p, q, within, pruned_by) -> list[float]:
    """The law of a step's first token: drafted by q, pruned outside of `within`."""
    out = [0.0] * len(p)
    residual = pruned_by(p, q, within)
    for x, weight in enumerate(q):
        if not within[x]:
            out = [a + weight * b for a, b in zip(out, residual[0], strict=True)]
            continue
        stands = min(1.0, p[x] / weight)
        out[x] += weight * stands
        out = [a + weight * (1 - stands) * b for a, b in zip(out, residual[1], strict=True)]
    return out


def normed(weights: list[float], instead: list[float]) -> list[float]:
    return [w / sum(weights) for w in weights] if sum(weights) > 1e-15 else instead


def published(p, q, within):
    """A pruned token ends the draft and p says the next; another that falls leaves [p − q]+."""
    left = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
    return p, normed(left, p)


def exact(p, q, within):
    """Whatever falls leaves p − q f."""
    left = [max(0.0, a - (b if inside else 0.0)) for a, b, inside in zip(p, q, within, strict=True)]
    return (normed(left, p),) * 2


def test_the_published_way_is_off_and_this_is_not():
    rng, worst = random.Random(0), {published: 0.0, exact: 0.0}
    for _ in range(2000):
        p, q = law_of(rng, 4), law_of(rng, 4)
        within = [rng.random() < 0.5 for _ in range(4)]
        for way in worst:
            law = step(p, q, within, way)
            off = sum(abs(a - b) for a, b in zip(law, p, strict=True)) / 2
            worst[way] = max(worst[way], off)
    assert worst[exact] < 1e-12
    assert 0.2 < worst[published] < 0.3


# --- the whole loop -------------------------------------------------------------------------------


class EarlyTarget(TableTarget):
    """A target with early laws; behind what they prune its own are as good as unread."""

    def __init__(self, table: Table, early: Table, least: float) -> None:
        super().__init__(table)
        self.shallow, self.least = TableTarget(early), least

    def score(self, context, draft) -> Scores:
        scores, early = super().score(context, draft), self.shallow.score(context, draft).laws
        for row, tokens in enumerate(draft.tokens.tolist()):
            for n, token in enumerate(tokens):
                if early[row, n, token] < self.least:
                    scores.laws[row, n + 1 :] = 0
                    break
        scores.early = early
        return scores


@pytest.mark.parametrize(("seed", "least"), [*product((2, 3, 4), (0.05, 0.4, 0.6, 1.0))])
def test_joint_law(seed, least):
    target, model = Table(2, seed), Table(2, seed + 50)
    early = EarlyTarget(target, Table(2, seed + 90), least)
    for drafter in (lambda: ModelDrafter(TableModel(model)), lambda: PromptLookupDrafter(2)):
        law = whole_loop(4, early, drafter, RestrictedRule(None, least), ConstantLength(2))
        assert distance(law, target.joint(4)) < EXACT


def test_joint_law_of_three_tokens():
    target, model = Table(3, 7), Table(3, 8)
    early = EarlyTarget(target, Table(3, 9), 0.3)
    law = whole_loop(
        3,
        early,
        lambda: ModelDrafter(TableModel(model)),
        RestrictedRule(None, 0.3),
        ConstantLength(2),
    )
    assert distance(law, target.joint(3)) < EXACT
