"""Judged tokens: equal to the twin, bent by what the judge adds, and never what p forbids."""

from __future__ import annotations

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
    composed,
    distance,
    drafters,
    one_hot,
    whole_loop,
)

from mmspec.draft.draft_model import ModelDrafter
from mmspec.engine.accept import judge_naive, token_naive
from mmspec.engine.accept.judge import JudgeRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import Categorical, ContractError, OneHot, Opaque
from mmspec.engine.proof.enumeration import enumerate_law
from mmspec.engine.warp import Warp

KNOBS = st.tuples(st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.sampled_from([0.0, 0.1, 0.3, 1.0]))
JUDGED = st.lists(st.sampled_from([0.0, 0.3, 0.4, 0.9, 1.0]), min_size=3, max_size=3)


class Told:
    """A judge whose verdicts are the hidden states themselves."""

    threshold = 0.5

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden[..., 0]


class JudgedTarget(TableTarget):
    """A table whose state after a token says what the judge makes of it: by `takes [V]`."""

    def __init__(self, table: Table, takes: list[float]) -> None:
        super().__init__(table)
        self.takes = torch.tensor(takes).double()

    def score(self, context, draft):
        scores = super().score(context, draft)
        read = torch.cat([context.last, draft.tokens], dim=1)
        scores.hidden = self.takes[read][..., None]
        return scores


def rule_law(drafted, p, law, rule, judged) -> dict:
    """The enumerated law of what one verdict emits; J of node n is `judged[n]`."""

    def verify(coins, rows):
        nodes = torch.tensor(drafted).long().expand(rows, -1)
        own = Categorical(law.probs.expand(rows, -1, -1)) if isinstance(law, Categorical) else law
        draft = Draft(nodes, torch.full((rows,), len(drafted)), own)
        laws = torch.tensor(p, dtype=torch.float64).expand(rows, -1, -1)
        # of the root nothing is asked; rows without a condition stand behind
        states = torch.tensor([-1.0, *judged[: len(drafted)]], dtype=torch.float64)[:, None]
        hidden = states.expand(rows, -1, -1).repeat(2, 1, 1)
        hidden[rows:] = torch.nan
        verdict = rule.verify(draft, Scores(laws, hidden), coins.round(0)[1])
        assert torch.equal(verdict.counts, verdict.accepted + 1)
        pairs = zip(verdict.emitted.tolist(), verdict.counts.tolist(), strict=True)
        return [tuple(tokens[:count]) for tokens, count in pairs]

    return enumerate_law(verify)


# --- fast = naive ---------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None, derandomize=True)
@given(chains(), KNOBS, JUDGED, st.sampled_from([0.0, 1.0]))
def test_law_equals_naive(chain, knobs, judged, temperature):
    vocab, drafted, p, q = chain
    rule = JudgeRule(Told(), *knobs, temperature)
    known = [1.0] * 3 if knobs[0] == 0 else judged  # at threshold 0 nobody is asked
    truth = judge_naive.judge_rule(drafted, p, q, known, *knobs, greedy=temperature == 0)
    assert close(rule_law(drafted, p, categorical(q, vocab), rule, judged), truth)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(chains(), KNOBS, JUDGED)
def test_one_hot_law_equals_naive(chain, knobs, judged):
    vocab, drafted, p, _ = chain
    q = [one_hot(x, vocab) for x in drafted]
    known = [1.0] * 3 if knobs[0] == 0 else judged
    truth = judge_naive.judge_rule(drafted, p, q, known, *knobs)
    assert close(rule_law(drafted, p, OneHot(), JudgeRule(Told(), *knobs), judged), truth)


def test_naive_by_hand():
    """p = (.25, .75), q = (.75, .25): a judged 0 stands, else with 1 / 3; what falls becomes 1."""
    p, q = [[0.25, 0.75], [0.5, 0.5]], [[0.75, 0.25]]
    sure = {(0, 0): 1 / 2, (0, 1): 1 / 2}
    unsure = {(0, 0): 1 / 6, (0, 1): 1 / 6, (1,): 2 / 3}
    assert close(judge_naive.judge_rule([0], p, q, [0.9], 0.5, 0.0), sure)
    assert close(judge_naive.judge_rule([0], p, q, [0.9], 0.9, 0.0), unsure)  # not above
    assert close(judge_naive.judge_rule([0], p, q, [0.9], 0.5, 0.25), sure)  # the floor itself
    assert close(judge_naive.judge_rule([0], p, q, [0.9], 0.5, 0.3), unsure)
    likeliest = {(0, 0): 1.0}, {(1,): 1.0}
    assert close(judge_naive.judge_rule([0], p, q, [0.9], 0.5, 0.0, True), likeliest[0])
    assert close(judge_naive.judge_rule([0], p, q, [0.1], 0.5, 0.0, True), likeliest[1])


def test_the_judges_own_threshold():
    p, law = [[0.2, 0.8], [0.5, 0.5]], categorical([[1.0, 0.0]], 2)
    for judged, stands in ((0.5, False), (0.51, True)):
        out = rule_law([0], p, law, JudgeRule(Told()), [judged])
        assert ({len(tokens) for tokens in out} == {2}) == stands


# --- how far it is off ----------------------------------------------------------------------------


def emitted(q, p, takes, rule) -> dict[int, float]:
    """The law of the first token when the draft is one of q and the target wants p."""
    law: dict[int, float] = {}
    for x, weight in enumerate(q):
        if weight:
            laws = [p, one_hot(0, len(p))]
            for out, mass in rule_law([x], laws, categorical([q], len(q)), rule, takes[x:]).items():
                law[out[0]] = law.get(out[0], 0.0) + weight * mass
    return law


@pytest.mark.parametrize("floor", [0.0, 0.05, 0.2])
def test_variation_of_a_step_is_what_the_judge_adds(floor):
    """Σ [q − p]+ over the tokens it takes, no more than 1 − floor, and without a floor all of it:
    the published form lets tokens of p = 0 stand."""
    most, forbidden = 0.0, 0.0
    for seed in range(12):
        q, p = torch.rand(2, 5, generator=torch.Generator().manual_seed(seed)).double().pow(3)
        p[1] = 0
        q, p = (q / q.sum()).tolist(), (p / p.sum()).tolist()
        takes = [float(n % 5 == seed % 5 or n == 1) for n in range(5)]
        law = emitted(q, p, takes, JudgeRule(Told(), 0.5, floor))
        off = distance(law, dict(enumerate(p)))
        taken = [x for x in range(5) if takes[x] and p[x] >= floor and p[x] > 0]
        assert off == pytest.approx(sum(max(0.0, q[x] - p[x]) for x in taken), abs=EXACT)
        assert off <= 1 - floor + EXACT
        assert law.get(1, 0.0) == 0
        bare = sum(max(0.0, q[x] - p[x]) for x in range(5) if takes[x])
        most, forbidden = max(most, off), max(forbidden, bare - off)
    assert most > 0.05
    assert forbidden > 0.05


@pytest.mark.parametrize("name", ["model", "lookup", "jacobi-previous"])
def test_a_judge_that_takes_nothing_is_exact(name):
    target = Table(3, 7)
    make = drafters(3, Table(3, 8))[name]
    law = whole_loop(3, JudgedTarget(target, [0.5] * 3), make, JudgeRule(Told(), 0.5))
    assert distance(law, target.joint(3)) < EXACT


def test_whole_outputs_of_a_judge_that_takes_one_token():
    target, model = Table(3, 0), Table(3, 1)
    rule = JudgeRule(Told(), 0.5)
    make = JudgedTarget(target, [0.0, 1.0, 0.0])
    law = composed(4, make, ModelDrafter(TableModel(model)), rule, 2)
    assert sum(law.values()) == pytest.approx(1, abs=EXACT)
    truth = target.joint(4)
    assert 0.01 < distance(law, truth) < 1
    assert all(truth.get(out, 0.0) > 0 for out, mass in law.items() if mass > EXACT)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(chains(), JUDGED)
def test_a_floor_of_more_than_all_is_the_token_rule(chain, judged):
    vocab, drafted, p, q = chain
    rule, truth = JudgeRule(Told(), 0.2, 1.5), token_naive.token_rule(drafted, p, q)
    assert close(rule_law(drafted, p, categorical(q, vocab), rule, judged), truth)


# --- greedy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("warp", [Warp(temperature=0), Warp()], ids=str)
def test_greedy_without_what_the_judge_takes_is_greedy_decoding(warp):
    """Of laws at temperature 1 as of one-hot ones, whose likeliest token is alone above a floor."""
    target = Table(3, 3, warp)
    rule = JudgeRule(Told(), 0.5, 0.0, 0.0)
    law = whole_loop(4, JudgedTarget(target, [0.0] * 3), drafters(3, Table(3, 8))["model"], rule)
    assert close(law, {target.greedy(4): 1.0})


def test_greedy_takes_what_the_judge_takes():
    p = [[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.1, 0.1, 0.8]]
    rule = JudgeRule(Told(), 0.5, 0.2, 0.0)
    assert rule_law([1, 0], p, OneHot(), rule, [0.9, 0.9]) == {(1, 0, 2): 1.0}
    assert rule_law([1, 0], p, OneHot(), rule, [0.9, 0.1]) == {(1, 1): 1.0}
    assert rule_law([2, 0], p, OneHot(), rule, [0.9, 0.9]) == {(0,): 1.0}  # below the floor


# --- rows, and what is refused --------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_do_not_depend_on_their_neighbours(temperature):
    generator = torch.Generator().manual_seed(0)
    rows, nodes, vocab = 6, 4, 20
    p = torch.randn(rows, nodes + 1, vocab, generator=generator).mul(2).softmax(-1)
    q = torch.randn(rows, nodes, vocab, generator=generator).mul(2).softmax(-1)
    hidden = torch.rand(rows, nodes + 1, 1, generator=generator)
    tokens = torch.randint(0, vocab, (rows, nodes), generator=generator)
    lengths = torch.tensor([0, 1, 2, 3, 4, 4])
    rule, seeds, seen = JudgeRule(Told(), 0.4, 0.0, temperature), list(range(rows)), set()
    for number in range(20):
        coins = ProductionCoins(seeds).round(number)[1]
        together = rule.verify(Draft(tokens, lengths, Categorical(q)), Scores(p, hidden), coins)
        for b in range(rows):
            draft = Draft(tokens[[b]], lengths[[b]], Categorical(q[[b]]))
            coins = ProductionCoins([seeds[b]]).round(number)[1]
            alone = rule.verify(draft, Scores(p[[b]], hidden[[b]]), coins)
            count = int(alone.counts)
            assert int(together.counts[b]) == count
            assert torch.equal(together.emitted[b, :count], alone.emitted[0, :count])
            seen.add(count)
    assert len(seen) > 1


def test_without_hidden_states():
    draft = Draft(torch.zeros(1, 1).long(), torch.tensor([1]), OneHot())
    scores, coins = Scores(torch.full((1, 2, 2), 0.5)), ProductionCoins([0]).round(0)[1]
    with pytest.raises(ContractError, match="hidden"):
        JudgeRule(Told(), 0.5).verify(draft, scores, coins)
    assert int(JudgeRule(Told(), 0.0).verify(draft, scores, coins).accepted) == 1


def test_other_drafts_are_refused():
    scores, coins = Scores(torch.full((1, 3, 2), 0.5)), ProductionCoins([0]).round(0)[1]
    nodes, two = torch.zeros(1, 2).long(), torch.tensor([2])
    tree = Draft(nodes, two, OneHot(), torch.full((1, 2), -1))
    for draft, why in ((tree, "tree"), (Draft(nodes, two, Opaque()), "Opaque")):
        with pytest.raises(ContractError, match=why):
            JudgeRule().verify(draft, scores, coins)
