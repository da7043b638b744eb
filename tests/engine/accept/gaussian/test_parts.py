"""The rules on normal laws beside their twins, what they refuse, and CSpD as released."""

from __future__ import annotations

import pytest
import torch
from gaussians import EXACT
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Normal

from mmspec.engine.accept.gaussian import naive
from mmspec.engine.accept.gaussian.base import log_ratio
from mmspec.engine.accept.gaussian.block import GaussianBlockRule
from mmspec.engine.accept.gaussian.gamma_maximal import GammaMaximalRule
from mmspec.engine.accept.gaussian.independent import IndependentRule
from mmspec.engine.accept.gaussian.reflection import ReflectionRule
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import Categorical, ContractError, Gaussian, OneHot, Opaque
from mmspec.engine.proof.quadrature import branches

RULES = [ReflectionRule(), GammaMaximalRule(), GaussianBlockRule(), IndependentRule()]


def random_laws(rows, nodes, size, seed, equal=False, far=0.3):
    """Scores, a draft that was drawn from its law, and coins."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    mean, std = normal(rows, nodes + 1, size), (0.3 * normal(rows, nodes + 1, size)).exp()
    q_mean = mean[:, :nodes] + far * normal(rows, nodes, size)
    q_std = std[:, :nodes] * (1 if equal else (0.1 * normal(rows, nodes, size)).exp())
    tokens = q_mean + q_std * normal(rows, nodes, size)
    draft = Draft(tokens, torch.full((rows,), nodes), Gaussian(q_mean, q_std))
    return Scores(Gaussian(mean, std)), draft, ProductionCoins(list(range(rows))).round(0)[1]


# --- fast = naive ---------------------------------------------------------------------------------

numbers = st.floats(-2, 2)
deviations = st.floats(0.3, 3)


@st.composite
def chains(draw, equal):
    """Drafted vectors of 1 or 2 numbers, p (one law more) and q."""
    size, nodes = draw(st.integers(1, 1 if equal == "one" else 2)), draw(st.integers(1, 3))
    p = [[(draw(numbers), draw(deviations)) for _ in range(size)] for _ in range(nodes + 1)]
    q = [[(draw(numbers), std if equal else draw(deviations)) for _, std in law] for law in p[:-1]]
    x = [[mean + std * draw(numbers) for mean, std in law] for law in q]
    return x, p, q


def counts_law(rule, x, p, q, filling=0):
    """The enumerated probabilities of how many are kept; `filling` nodes follow the real ones."""
    law = [0.0] * (len(x) + 1)
    nan = [float("nan")] * len(x[0])
    tokens = torch.tensor([[*x, *[nan] * filling]], dtype=torch.float64)
    laws = [
        torch.tensor([[*law_, *[[(v, v) for v in nan]] * filling]], dtype=torch.float64)
        for law_ in (p, q)
    ]

    def run(coins, rows):
        draft = Draft(tokens, torch.tensor([len(x)]), Gaussian(laws[1][..., 0], laws[1][..., 1]))
        return rule.verify(
            draft, Scores(Gaussian(laws[0][..., 0], laws[0][..., 1])), coins.round(0)[1]
        )

    entries = len(x) + filling if isinstance(rule, GaussianBlockRule) else 1
    noise = torch.full((1, entries * (len(x[0]) + 1)), 0.3, dtype=torch.float64)
    for verdict, coins in branches(run, [noise[:, : len(x[0])], noise]):
        law[int(verdict.accepted)] += coins.probability.item()
    return law


@settings(max_examples=40, deadline=None, derandomize=True)
@given(chains(equal=True), st.integers(0, 1))
def test_kept_in_turn_equals_naive(chain, filling):
    x, p, q = chain
    for rule in (ReflectionRule(), GammaMaximalRule()):
        assert counts_law(rule, x, p, q, filling) == pytest.approx(naive.in_turn(x, p, q), abs=1e-9)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(chains(equal="one"), st.integers(0, 1))
def test_kept_as_a_block_equals_naive(chain, filling):
    x, p, q = chain
    found = counts_law(GaussianBlockRule(), x, p, q, filling)
    assert found == pytest.approx(naive.block(x, p, q), abs=EXACT)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(chains(equal=True))
def test_what_falls_is_reflected_as_in_naive(chain):
    x, p, q = chain
    if [mean for mean, _ in p[0]] == [mean for mean, _ in q[0]]:
        return  # nothing falls
    tables = [torch.tensor([law], dtype=torch.float64) for law in (p, q)]

    class Coins(ProductionCoins):
        def accept(self, prob, lengths):
            return torch.zeros_like(prob, dtype=torch.bool)

        def normal(self, shape, index=0):
            return torch.zeros(1, *shape, dtype=torch.float64)

        def draw(self, weights, index=0):
            assert weights[0, 0, 0] == 1  # with equal deviations a mirror image always stands
            return torch.zeros(weights.shape[:-1])

    p_law, q_law = (Gaussian(t[..., 0], t[..., 1]) for t in tables)
    draft = Draft(torch.tensor([x], dtype=torch.float64), torch.tensor([len(x)]), q_law)
    verdict = ReflectionRule().verify(draft, Scores(p_law), Coins([0]))
    assert verdict.last[0, 0].tolist() == pytest.approx(naive.reflected(x[0], p[0], q[0]))


@pytest.mark.parametrize("size", [1, 3, 16])
def test_ratio_against_another_formula(size):
    """CSpD's ratio without Σ: the densities of torch.distributions, not in logs of parts."""
    scores, draft, _ = random_laws(50, 4, size, size)
    p, q, x = scores.gaussian, draft.law, draft.tokens
    ours = log_ratio(Gaussian(p.mean[:, :4], p.std[:, :4]), q, x)
    theirs = Normal(p.mean[:, :4], p.std[:, :4]).log_prob(x) - Normal(q.mean, q.std).log_prob(x)
    assert torch.allclose(ours, theirs.sum(-1), atol=1e-9)


# --- what can't be judged exactly is refused ------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_only_chains_of_normal_laws(rule):
    scores, draft, coins = random_laws(2, 2, 3, 0, equal=True)
    laws = [OneHot(), Opaque(), Categorical(torch.ones(2, 2, 3) / 3)]
    for law in laws:
        wrong = Draft(draft.tokens, draft.lengths, law)
        with pytest.raises(ContractError, match="takes Gaussian laws"):
            rule.verify(wrong, scores, coins)
    draft.parents = torch.tensor([[-1, -1]] * 2)
    with pytest.raises(ContractError, match="tree"):
        rule.verify(draft, scores, coins)


@pytest.mark.parametrize("rule", RULES)
def test_targets_whose_tokens_are_ids(rule):
    _, draft, coins = random_laws(2, 2, 3, 0)
    with pytest.raises(ContractError, match="token"):
        rule.verify(draft, Scores(torch.ones(2, 3, 3) / 3), coins)


def test_rules_for_ids_refuse_vectors():
    scores, _, coins = random_laws(2, 2, 3, 0)
    ids = Draft(torch.zeros(2, 2, dtype=torch.long), torch.tensor([2, 2]), OneHot())
    with pytest.raises(ContractError, match="gamma-maximal"):
        TokenRule().verify(ids, scores, coins)


# --- rows, filling, empty drafts ------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_rows_do_not_depend_on_their_neighbours(rule):
    """Each row alone, without the filling, gets what it gets among longer ones."""
    equal = isinstance(rule, ReflectionRule)
    scores, draft, coins = random_laws(6, 4, 3, 5, equal, far=0.8)
    draft.lengths = torch.tensor([4, 0, 2, 3, 1, 4])
    p, q = scores.gaussian, draft.law
    together = rule.verify(draft, scores, coins)
    assert torch.isfinite(together.last).all()
    for row, n in enumerate(draft.lengths.tolist()):
        one = slice(row, row + 1)
        alone = rule.verify(
            Draft(
                draft.tokens[one, :n], draft.lengths[one], Gaussian(q.mean[one, :n], q.std[one, :n])
            ),
            Scores(Gaussian(p.mean[one, : n + 1], p.std[one, : n + 1])),
            ProductionCoins([row]).round(0)[1],
        )
        count = alone.counts.item()
        assert count == together.counts[row]
        assert alone.accepted.item() == together.accepted[row]
        assert torch.equal(alone.emitted[0, :count], together.emitted[row, :count])
        assert torch.equal(alone.last[0], together.last[row])


@pytest.mark.parametrize("rule", RULES)
def test_half_precision_heads(rule):
    """Vectors keep the head's type; the ratio is taken in double precision."""
    scores, draft, coins = random_laws(4, 3, 3, 6, equal=True)
    p, q = scores.gaussian, draft.law
    small = [Gaussian(law.mean.bfloat16(), law.std.bfloat16()) for law in (p, q)]
    low = Draft(draft.tokens.bfloat16(), draft.lengths, small[1])
    assert rule.verify(low, Scores(small[0]), coins).emitted.dtype == torch.bfloat16


# --- CSpD as released -----------------------------------------------------------------------------


def test_independent_keeps_a_set():
    """κ = 1: each vector stands or falls by itself, and the fallen ones are drawn anew."""
    scores, draft, coins = random_laws(300, 4, 3, 7, far=0.5)
    verdict = IndependentRule(1.0).verify(draft, scores, coins)
    p, q = scores.gaussian, draft.law
    ratio = log_ratio(Gaussian(p.mean[:, :4], p.std[:, :4]), q, draft.tokens).exp()
    assert torch.equal(verdict.keep, coins.accept(ratio, draft.lengths))
    assert torch.equal(verdict.counts, draft.lengths)
    assert torch.equal(verdict.emitted[:, :4][verdict.keep], draft.tokens[verdict.keep])
    fell = verdict.emitted[:, :4][~verdict.keep]
    assert 0.2 < verdict.keep.double().mean() < 0.8
    assert (fell != draft.tokens[~verdict.keep]).all()
    assert (fell != 0).all()  # no row of zeros


def test_softening_keeps_more():
    scores, draft, coins = random_laws(300, 4, 3, 7, equal=True, far=1.0)
    kept = [IndependentRule(k).verify(draft, scores, coins).keep for k in (1.0, 3.0, 42.0)]
    assert (kept[0] <= kept[1]).all()
    assert kept[0].sum() < kept[1].sum() < kept[2].sum()
    assert kept[2].double().mean() > 0.99
