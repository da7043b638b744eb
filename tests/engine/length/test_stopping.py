"""Policies that stop a draft by its own tokens: the unsure token stays, and the law with it."""

from __future__ import annotations

import pytest
import torch
from toys import EXACT, Table, TableModel, TableTarget, distance, whole_loop

from mmspec.draft.draft_model import ModelDrafter
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Context, Draft, Verdict
from mmspec.engine.laws import Categorical
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.length.stopping import _BINS, _WEIGHT, ConfidenceLength, SpecDecLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats

POLICIES = {
    "confidence": lambda: ConfidenceLength(3, 0.5),
    "specdec++": lambda: SpecDecLength(3, 0.5),
}


def law_of(policy, drafter_class=ModelDrafter) -> float:
    """How far the law of the whole loop is from the target's."""
    worst = 0.0
    for seed in (0, 3, 7):
        target, model = Table(2, seed), Table(2, seed + 50)
        length = policy()
        law = whole_loop(
            4,
            TableTarget(target),
            lambda length=length, model=model: drafter_class(TableModel(model), length.more),
            length=length,
            at_once=1,
        )
        worst = max(worst, distance(law, target.joint(4)))
    return worst


@pytest.mark.parametrize("name", POLICIES)
def test_joint_law(name):
    assert law_of(POLICIES[name]) < EXACT


class Dropping(ModelDrafter):
    """The hazard: the token that made the row stop is taken out again."""

    def propose(self, context, budget, coins):
        draft = super().propose(context, budget, coins)
        if draft.nodes:
            stopped = draft.lengths < torch.tensor(budget)
            draft.lengths = torch.where(stopped, draft.lengths - 1, draft.lengths)
        return draft


def test_hazard_is_seen():
    assert law_of(POLICIES["confidence"], Dropping) > 1e-2


@pytest.mark.parametrize("name", POLICIES)
def test_drafts_end_where_the_policy_says(name):
    policy, seen = POLICIES[name](), []

    class Watched(TokenRule):
        def verify(self, draft, scores, coins):
            seen.append(draft)
            return super().verify(draft, scores, coins)

    coins = ProductionCoins(list(range(6)))
    drafter = ModelDrafter(TableModel(Table(4, 41)), policy.more)
    engine = Engine(TableTarget(Table(4, 40)), drafter, Watched(), policy, coins)
    stats = SpecStats()
    run(engine, 6, 16, stats)
    lengths = torch.cat([draft.lengths for draft in seen])
    assert {1, 2, 3} <= set(lengths.tolist())
    if name == "confidence":
        for draft in (d for d in seen if d.nodes):
            q = draft.law.probs.gather(2, draft.tokens[..., None]).squeeze(2)
            for row, length in enumerate(draft.lengths.tolist()):
                assert all(q[row, : length - 1] >= 0.5)


@pytest.mark.parametrize("name", POLICIES)
def test_row_equals_itself_alone(name):
    def emitted(seeds):
        policy = POLICIES[name]()
        drafter = ModelDrafter(TableModel(Table(4, 41)), policy.more)
        coins = ProductionCoins(seeds)
        engine = Engine(TableTarget(Table(4, 40)), drafter, TokenRule(), policy, coins)
        return run(engine, len(seeds), 14, SpecStats()).tokens[:, :14].tolist()

    together = emitted(list(range(8)))
    assert together == [emitted([seed])[0] for seed in range(8)]


def test_shares_are_the_rows_own():
    policy = SpecDecLength(4)
    policy.start(2)
    q = torch.tensor([[0.9, 0.9, 0.3], [0.9, 0.3, 0.3]], dtype=torch.float64)
    probs = torch.stack([q, 1 - q], -1)
    draft = Draft(torch.zeros(2, 3).long(), torch.tensor([3, 2]), Categorical(probs))
    kept = torch.tensor([2, 0])
    zeros = torch.zeros(2, 4).long()
    verdict = Verdict(kept, zeros, zeros[:, :1], kept + 1)
    policy.observe(Context.empty(2, 9), draft, verdict)
    high, low = int(0.9 * _BINS), int(0.3 * _BINS)
    first = (high + 0.5) / _BINS * _WEIGHT
    assert policy._stood[0, high] == first + 2  # two stood, the third fell in the lower bin
    assert policy._judged[0, [high, low]].tolist() == [_WEIGHT + 2, _WEIGHT + 1]
    assert policy._judged[1, [high, low]].tolist() == [_WEIGHT + 1, _WEIGHT]
    assert policy._stood[1, high] == first


def test_constant_length_is_not_asked():
    assert not hasattr(ConstantLength(3), "more")
