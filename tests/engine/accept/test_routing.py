"""Rules that route blocks of video: equal to their twins, and what is no number never stands."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmspec.engine.accept import routing_naive as naive_routing
from mmspec.engine.accept.routing import (
    PATIENCE,
    AdvantageRule,
    RandomRoutingRule,
    RewardMeanRule,
    RewardRankRule,
    RewardThresholdRule,
)
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import ContractError, OneHot, Opaque, Rewards
from mmspec.engine.proof.enumeration import enumerate_law

EXACT = 1e-9
REWARD = st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, math.inf, math.nan])
BLOCK = st.lists(REWARD, min_size=3, max_size=3)
FRAME_RULES = st.sampled_from(["worst", "mean"])


def drafted(rows: int, nodes: int = 1, lengths: list[int] | None = None) -> Draft:
    tokens = torch.arange(float(rows * nodes * 8)).view(rows, nodes, 2, 1, 2, 2)
    return Draft(tokens, torch.tensor(lengths or [nodes] * rows), Opaque())


def judged(*blocks: list[float]) -> Scores:
    """Scores of one block a row."""
    return Scores(Rewards(torch.tensor(blocks, dtype=torch.float64)[:, None]), calls=0)


def coins(rows: int, number: int = 0):
    return ProductionCoins(list(range(rows))).round(number)[1]


def clip_law(rule, blocks: list[list[float]]) -> dict[tuple[int, ...], float]:
    """The law of what stands of a clip, by the shipped rule."""

    def run(branches, rows: int) -> list[tuple[int, ...]]:
        made = rule()
        kept = [
            made.verify(drafted(rows), judged(*[frames] * rows), branches).keep for frames in blocks
        ]
        return [tuple(map(int, row)) for row in torch.cat(kept, dim=1).tolist()]

    return enumerate_law(run)


def close(found, wanted) -> bool:
    outcomes = found.keys() | wanted.keys()
    return all(abs(found.get(o, 0.0) - wanted.get(o, 0.0)) < EXACT for o in outcomes)


@settings(deadline=None)
@given(st.lists(BLOCK, min_size=1, max_size=4), REWARD, FRAME_RULES)
def test_threshold_is_its_twin(blocks, tau, frame_rule):
    verdict = RewardThresholdRule(tau, frame_rule).verify(
        drafted(len(blocks)), judged(*blocks), coins(len(blocks))
    )
    for frames, kept in zip(blocks, verdict.keep.tolist(), strict=True):
        assert naive_routing.reward_threshold_rule(frames, tau, frame_rule) == {
            (*map(int, kept),): 1
        }
    assert verdict.accepted.tolist() == verdict.keep.sum(1).tolist()
    assert verdict.counts.tolist() == [1] * len(blocks)


@settings(deadline=None)
@given(st.lists(BLOCK, min_size=1, max_size=4), REWARD)
def test_advantage_is_its_twin(blocks, tau):
    verdict = AdvantageRule(tau).verify(drafted(len(blocks)), judged(*blocks), coins(len(blocks)))
    for frames, kept in zip(blocks, verdict.keep.tolist(), strict=True):
        assert naive_routing.advantage_rule(frames, tau) == {(*map(int, kept),): 1}


def mean_score(pairs, asked) -> float:
    """Of pairs of scores, the draft's and the target's, those of the latter where it is asked."""
    return sum(pair[bool(a)] for pair, a in zip(pairs, asked, strict=True)) / len(pairs)


def test_no_other_way_to_ask_as_often_wins_more():
    """Against all ways; an absolute threshold, as published for blocks, asks where both fail."""
    pairs = [(0.1, 0.1), (0.2, 0.15), (0.5, 0.9), (0.6, 0.8), (0.3, 0.3), (0.9, 1.0)]
    draft = drafted(len(pairs))
    gains = [[target - own] for own, target in pairs]
    for tau in (-1.0, 0.0, 0.05, 0.15, 0.3, 1.0):
        keep = AdvantageRule(tau).verify(draft, judged(*gains), coins(len(pairs))).keep
        asked = [not kept for (kept,) in keep.tolist()]
        ways = itertools.product((False, True), repeat=len(pairs))
        best = max(mean_score(pairs, way) for way in ways if sum(way) == sum(asked))
        assert mean_score(pairs, asked) == pytest.approx(best)
    absolute = RewardThresholdRule(0.4).verify(
        draft, judged(*[[own] for own, _ in pairs]), coins(len(pairs))
    )
    asked = [not kept for (kept,) in absolute.keep.tolist()]
    assert sum(asked) == 3
    assert mean_score(pairs, asked) < mean_score(pairs, [False] * 6)  # three calls, and less


def test_block_by_block_is_not_best_of_a_whole_clip():
    """What stands decides what comes later: the true advantage, asked in vain."""
    first, later = (0.5, 0.4), {"draft": (0.0, 0.0), "target": (1.0, 1.0)}
    kept = AdvantageRule(0.0).verify(drafted(1), judged([first[1] - first[0]]), coins(1)).keep
    assert kept.tolist() == [[True]]
    by_advantage, by_target = first[0] + max(later["draft"]), first[1] + max(later["target"])
    assert by_advantage < by_target


@settings(deadline=None, max_examples=50)
@given(
    st.lists(BLOCK, min_size=1, max_size=5), st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]), FRAME_RULES
)
def test_rank_is_its_twin(blocks, share, frame_rule):
    found = clip_law(lambda: RewardRankRule(share, frame_rule), blocks)
    assert close(found, naive_routing.reward_rank_rule(blocks, share, frame_rule))


@settings(deadline=None, max_examples=50)
@given(
    st.lists(BLOCK, min_size=1, max_size=6),
    st.sampled_from([-1.0, 0.2513, 0.5017, 0.9991]),
    FRAME_RULES,
)
def test_mean_is_its_twin(blocks, wish, frame_rule):
    found = clip_law(lambda: RewardMeanRule(wish, frame_rule), blocks)
    assert close(found, naive_routing.reward_mean_rule(blocks, wish, frame_rule))


@pytest.mark.parametrize("wish", [0.0, 0.4, 1.2])
def test_mean_is_as_wished(wish):
    """At every moment, and in the end no better than it has to be."""
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(3, 400, 1, generator=generator, dtype=torch.float64)
    rule, kept = RewardMeanRule(wish), []
    for number in range(400):
        given = judged(*rewards[:, number].tolist())
        kept.append(rule.verify(drafted(3), given, coins(3, number)).keep)
    stands = torch.cat(kept, dim=1)
    sums = torch.where(stands, rewards[..., 0], 0.0).cumsum(1)
    means = sums / stands.cumsum(1).clamp_min(1)
    assert bool((means[stands] >= wish - 1e-9).all())
    assert bool((means[:, -1] < wish + 0.1).all())


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_random_routing_is_its_twin(share):
    found = clip_law(lambda: RandomRoutingRule(share), [[math.nan] * 3])
    assert close(found, naive_routing.random_routing_rule(share))


@pytest.mark.parametrize("share", [0.5, 0.6])
def test_rank_keeps_the_wished_share(share):
    """Over all orders of different rewards every place stands as often as wished, exactly, as long
    as no more is owed than a share can be.
    """
    rewards = [[-3.0], [0.1], [7.0]]
    orders = list(itertools.permutations(rewards))
    stood = [0.0] * len(rewards)
    for blocks in orders:
        law = naive_routing.reward_rank_rule(list(blocks), share, "worst")
        for kept, p in law.items():
            stood = [s + p * k / len(orders) for s, k in zip(stood, kept, strict=True)]
    assert stood == pytest.approx([share] * len(rewards), abs=EXACT)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("order", ["rising", "falling", "equal", "late", "random"])
def test_rank_keeps_the_wished_share_in_any_order(share, order):
    """At every moment of a long clip, whatever coins say; equal rewards from the first draft on."""
    rows, length = 50, 60
    generator = torch.Generator().manual_seed(0)
    number = torch.arange(length, dtype=torch.float64)
    rewards = {
        "rising": number,
        "falling": -number,
        "equal": torch.zeros(length),
        "late": (number > length / 2).double(),
        "random": torch.randn(length, generator=generator),
    }[order]
    rule, kept = RewardRankRule(share), []
    for n, reward in enumerate(rewards.tolist()):
        verdict = rule.verify(drafted(rows), judged(*[[reward]] * rows), coins(rows, n))
        kept.append(verdict.keep)
    stood = torch.cat(kept, dim=1).double().cumsum(1)
    off = stood - share * (number + 1)
    assert float(off.abs().max()) <= PATIENCE
    if order == "equal":
        assert float(off.mean(0).abs().max()) < 0.25


def test_rank_looks_at_its_own_clip():
    """A row that drafts later, or is judged by nobody, has its own past."""
    blocks = [[[0.0], [5.0]], [[1.0], [math.nan]], [[2.0], [4.0]], [[-1.0], [6.0]]]
    both, alone = RewardRankRule(0.5), [RewardRankRule(0.5), RewardRankRule(0.5)]
    for number, pair in enumerate(blocks):
        lengths = [1, int(number > 0)]
        kept = both.verify(drafted(2, lengths=lengths), judged(*pair), coins(2, number)).keep
        for row, rule in enumerate(alone):
            own = ProductionCoins([row]).round(number)[1]
            verdict = rule.verify(
                drafted(1, lengths=lengths[row : row + 1]), judged(pair[row]), own
            )
            assert torch.equal(verdict.keep[0], kept[row])
    assert both.seen.shape == (2, 4)


@pytest.mark.parametrize(
    "rule",
    [
        RewardThresholdRule(-math.inf),
        RewardRankRule(1.0),
        AdvantageRule(math.inf),
        RewardThresholdRule(0.0, "mean"),
        RewardMeanRule(-9.0),
    ],
)
def test_no_number_never_stands(rule):
    verdict = rule.verify(drafted(2), judged([1.0, math.nan], [1.0, 2.0]), coins(2))
    assert verdict.keep.tolist() == [[False], [True]]
    assert verdict.accepted.tolist() == [0, 1]


@pytest.mark.parametrize(
    "rule",
    [
        RewardThresholdRule(-math.inf),
        RewardRankRule(1.0),
        AdvantageRule(math.inf),
        RandomRoutingRule(1.0),
        RewardMeanRule(-9.0),
    ],
)
def test_without_a_draft_the_target_makes_the_block(rule):
    draft = drafted(2, nodes=0)
    verdict = rule.verify(draft, Scores(Rewards(torch.zeros(2, 0, 0)), calls=0), coins(2))
    assert verdict.keep.shape == (2, 0)
    assert verdict.emitted.shape == (2, 1, *draft.tokens.shape[2:])
    assert verdict.counts.tolist() == [1, 1]
    assert verdict.accepted.tolist() == [0, 0]


def test_kept_block_is_emitted():
    draft = drafted(2)
    verdict = RewardThresholdRule(0.0).verify(draft, judged([1.0], [2.0]), coins(2))
    assert torch.equal(verdict.emitted, draft.tokens)
    assert torch.equal(verdict.last, draft.tokens)


def test_rewards_and_laws_do_not_go_together():
    laws = Scores(torch.full((2, 2, 3), 1 / 3))
    with pytest.raises(ContractError, match="judges by a reward, and the scores are laws"):
        RewardThresholdRule(0.0).verify(drafted(2), laws, coins(2))
    unasked = Scores(Rewards(torch.zeros(2, 1, 0)), calls=0)
    with pytest.raises(ContractError, match="judges by a reward, and none was asked"):
        RewardRankRule(0.5).verify(drafted(2), unasked, coins(2))
    tokens = Draft(torch.zeros(2, 1, dtype=torch.long), torch.ones(2, dtype=torch.long), OneHot())
    with pytest.raises(ContractError, match="here a reward judges"):
        TokenRule().verify(tokens, judged([1.0], [1.0]), coins(2))
    with pytest.raises(ContractError, match="here a reward judges"):
        judged([1.0]).gaussian  # noqa: B018 - the property raises
