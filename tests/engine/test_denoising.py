"""Speculation over denoising steps, end to end: the loop, its targets and its drafters."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from gaussians import EXACT, crossings, emitted_mean, noise_rule
from test_reflection import kinks

from benchmarks.toy_chains import LinearGaussian, MarkovHead, MarkovTokens
from mmspec.draft.denoising.aligned import AlignedDrafter
from mmspec.draft.denoising.frozen import FrozenDrafter
from mmspec.draft.denoising.small_head import DenoisingDrafter
from mmspec.draft.null import NullDrafter
from mmspec.engine.accept.gaussian import naive, reflection
from mmspec.engine.accept.gaussian.block import GaussianBlockRule
from mmspec.engine.accept.gaussian.gamma_maximal import GammaMaximalRule
from mmspec.engine.accept.gaussian.reflection import ReflectionRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Context
from mmspec.engine.laws import Gaussian, TargetError
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.proof.quadrature import branches, normal_rule, product, uniform_rule
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.models.mar.denoising_target import DenoisingTarget, last_noisy_law, walk
from mmspec.models.mar.iterations import MarPlan
from mmspec.models.mar.schedule import DiffusionSchedule

T, SIZE = 12, 3
SCHEDULE = DiffusionSchedule.trained("cosine").respaced(T)
SPREAD = torch.tensor([0.2, 0.5, 1.0], dtype=torch.float64)
TARGET = LinearGaussian.of_data(SPREAD, SCHEDULE, 0.3)
SMALL = LinearGaussian.of_data(SPREAD * 1.1, SCHEDULE, 0.4)
SAME = LinearGaussian(SMALL.gain, SMALL.pull, TARGET.std)  # deviations of the target


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def generate(drafter, rule, rows, length=4, target=TARGET, means=1.0):
    """Denoised tokens and counters; a row's condition, start and coins are functions of its id."""
    condition = means * torch.stack([normal(SIZE, seed=row) for row in rows])
    first = torch.stack([normal(1, SIZE, seed=100 + row) for row in rows])
    drafts = drafter(condition)
    engine = Engine(
        DenoisingTarget(target, condition),
        drafts,
        rule,
        ConstantLength(length),
        ProductionCoins(list(rows)),
    )
    stats = SpecStats()
    context = run(engine, len(rows), T, stats, first=first)
    return context, stats, condition, first


CASES = {
    "plain": (lambda condition: NullDrafter(), GammaMaximalRule()),
    "frozen": (lambda condition: FrozenDrafter(SCHEDULE), GammaMaximalRule()),
    "frozen-block": (lambda condition: FrozenDrafter(SCHEDULE), GaussianBlockRule()),
    "small": (lambda condition: DenoisingDrafter(SMALL, condition + 0.1), GammaMaximalRule()),
    "small-block": (lambda condition: DenoisingDrafter(SMALL, condition), GaussianBlockRule()),
    "reflection": (lambda condition: DenoisingDrafter(SAME, condition), ReflectionRule()),
}


# --- the loop -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_every_row_is_what_it_is_alone(name):
    drafter, rule = CASES[name]
    together, stats, *_ = generate(drafter, rule, range(5))
    assert together.base == [T] * 5
    for row in range(5):
        alone, own, *_ = generate(drafter, rule, [row])
        assert torch.equal(alone.tokens[0, :T], together.tokens[row, :T])
        assert own.calls == stats.calls[row : row + 1]


@pytest.mark.parametrize("name", CASES)
def test_the_last_step_adds_no_noise(name):
    drafter, rule = CASES[name]
    context, stats, condition, _ = generate(drafter, rule, range(5))
    x = context.tokens[:, T - 2]
    mean, std = TARGET.step(x, torch.zeros(5, dtype=torch.long), condition)
    assert (std == 0).all()
    assert torch.equal(context.tokens[:, T - 1], mean)
    if name != "plain":
        assert max(stats.calls) < T


def test_plain_sampling_is_the_chain():
    """Without a draft every call is a step, with the noise of the round."""
    context, stats, condition, first = generate(*CASES["plain"], range(3))
    assert stats.calls == [T] * 3
    x = first[:, 0]
    for n in range(T):
        mean, std = TARGET.step(x, torch.full((3,), T - 1 - n), condition)
        x = mean + std * ProductionCoins(list(range(3))).round(n)[1].normal((SIZE,))
        assert torch.allclose(context.tokens[:, n], x)


def test_the_law_of_the_chain():
    """The closed form against what the plain loop draws; five standard errors."""
    rows = 4000
    target, condition = LinearGaussian.of_data(SPREAD, SCHEDULE), torch.zeros(rows, SIZE)
    engine = Engine(
        DenoisingTarget(target, condition + 0.5),
        NullDrafter(),
        GammaMaximalRule(),
        ConstantLength(0),
        ProductionCoins(list(range(rows))),
    )
    first = torch.full((rows, 1, SIZE), 1.0, dtype=torch.float64)
    out = run(engine, rows, T, SpecStats(), first=first).tokens[:, :T]
    path = target.mean_path(first[0, 0], condition[0] + 0.5)
    covariance = target.covariance()
    spread = torch.stack([covariance[n, n] for n in range(T)]).sqrt()
    assert ((out.mean(0) - path).abs() <= 5 * spread / rows**0.5 + 1e-9).all()
    a, b = out[:, 3] - path[3], out[:, 7] - path[7]
    error = (spread[3] * spread[7]) * (2 / rows) ** 0.5
    assert (((a * b).mean(0) - covariance[3, 7]).abs() < 5 * error).all()


def test_finished_rows_are_not_asked_for():
    """The slowest row's last calls hold nothing of the others."""
    asked = []

    class Watched(LinearGaussian):
        def step(self, x, t, condition):
            asked.append(len(x))
            return super().step(x, t, condition)

    target = Watched(TARGET.gain, TARGET.pull, TARGET.std)
    _, stats, *_ = generate(*CASES["small"], range(8), target=target)
    assert sum(asked) == sum(stats.target_tokens)
    assert len(set(stats.calls)) > 1


@pytest.mark.parametrize("name", ["plain", "small", "small-block"])
@pytest.mark.parametrize("part", ["gain", "std"])
def test_a_head_that_breaks_is_named(name, part):
    broken = replace(TARGET, **{part: getattr(TARGET, part) * float("nan")})
    with pytest.raises(TargetError, match="token 0 of row 0"):
        generate(*CASES[name], range(2), target=broken)


@pytest.mark.parametrize("rule", [GammaMaximalRule(), GaussianBlockRule(), ReflectionRule()])
@pytest.mark.parametrize(("part", "by"), [("gain", math.nan), ("std", math.nan), ("std", 0.0)])
def test_a_small_head_that_breaks_drafts_nothing(rule, part, by):
    """Decoding goes on as if there were none; a step without noise, too, is no draft."""
    broken = replace(SMALL, **{part: getattr(SMALL, part) * by})
    context, stats, *_ = generate(lambda c: DenoisingDrafter(broken, c), rule, range(2))
    assert context.tokens[:, :T].isfinite().all()
    assert stats.drafted == stats.accepted == [0, 0]


def two_rounds(drafter, rule, x0):
    """The mean of exp(i s·x) over a whole chain of two steps, by quadrature over `loop.run`."""
    target = LinearGaussian(
        torch.tensor([[0.7], [0.9]], dtype=torch.float64),
        torch.tensor([[0.2], [0.1]], dtype=torch.float64),
        torch.tensor([[0.4], [0.8]], dtype=torch.float64),
    )
    one = torch.ones(1, 1, dtype=torch.float64)
    mean, std = target.step(x0 * one, torch.tensor([1]), one)
    q_mean, q_std = drafter.step(x0 * one, torch.tensor([1]), one)
    borders = crossings(Gaussian(mean[0], std[0]), Gaussian(q_mean[0], q_std[0]))
    mirrors = isinstance(rule, ReflectionRule)
    if mirrors:  # where the mirror image has corners, too
        p, q = ([(m.item(), s.item())] for m, s in ((mean, std), (q_mean, q_std)))
        borders = kinks(p, q)
    nodes, weights = product(
        normal_rule(14, *borders), normal_rule(12, 0.0), normal_rule(24), uniform_rule(1)
    )
    draft, own, last, pace = nodes[:, :1], nodes[:, 1:2], nodes[:, 2:3], nodes[:, 3:]
    frequencies = torch.tensor([0.8, -1.1], dtype=torch.float64)
    total = 0.0

    def shipped(coins, rows):
        condition = one.expand(rows, 1)
        policy, drafts = ConstantLength(1), DenoisingDrafter(drafter, condition)
        engine = Engine(DenoisingTarget(target, condition), drafts, rule, policy, coins)
        return run(engine, rows, 2, SpecStats(), first=(x0 * one).expand(rows, 1, 1))

    # a kept draft leaves the last step to `own`; after a fall it is a round of its own
    race = [] if mirrors else [torch.cat([own, pace], 1)]
    cut = 0.0
    for context, coins in branches(shipped, [draft, own, *race, last], 2 if mirrors else 64):
        if coins.taken[0] == 1:
            continue
        chance = weights * coins.probability
        if coins.cut:
            cut = cut + chance.sum()
        else:
            total = total + (chance * wave(context, frequencies)).sum()
    if mirrors:  # what is tried is integrated in plain numbers, and the target's step behind it
        y, chance = normal_rule(48, *splits(p, q))
        y = p[0][0] + p[0][1] * y
        density = [naive.density([v], p) for v in y.tolist()]
        lacks = [have - given for have, given in (naive.lacking([v], p, q) for v in y.tolist())]
        chance = chance * torch.tensor(lacks).double().clamp_min(0) / torch.tensor(density).double()
        assert abs(chance.sum() - cut) < EXACT
        after = target.gain[0] * y + target.pull[0]
        phase = frequencies[0] * y + frequencies[1] * after
        step = (-(frequencies[1] * target.std[0, 0]).square() / 2).exp()
        total = total + (chance * (1j * phase).exp()).sum() * step
    for context, coins in branches(shipped, [draft, last], 1):
        if coins.taken[0] == 1:
            total = total + (weights * coins.probability * wave(context, frequencies)).sum()
    path = target.mean_path(x0 * one[0], one[0])[:, 0]
    covariance = target.covariance()[..., 0]
    return total, (1j * (frequencies @ path) - frequencies @ covariance @ frequencies / 2).exp()


def wave(context, frequencies):
    return (1j * (context.tokens[:, :2, 0] @ frequencies)).exp()


def splits(p, q):
    """Kinks as deviations of the mirror images, under p."""
    images = (naive.reflected([q[0][0] + q[0][1] * v], p, q)[0] for v in kinks(p, q))
    return [(y - p[0][0]) / p[0][1] for y in images]


@pytest.mark.parametrize(
    ("rule", "std"),
    [
        *((ReflectionRule(), std) for std in (0.8, 0.7, 1.1)),
        *((GammaMaximalRule(), 0.8), (GaussianBlockRule(), 0.8)),
    ],
)
def test_the_whole_loop_is_exact(rule, std, monkeypatch):
    """Also where the drafter's deviation is not the target's, 0.8; races see `test_excess`."""
    monkeypatch.setattr(reflection, "TRIES", 1)
    drafter = LinearGaussian(
        torch.tensor([[0.5], [0.8]], dtype=torch.float64),
        torch.tensor([[0.0], [-0.4]], dtype=torch.float64),
        torch.tensor([[0.4], [std]], dtype=torch.float64),
    )
    found, truth = two_rounds(drafter, rule, 0.7)
    assert abs(found - truth) < EXACT


# --- drafters -------------------------------------------------------------------------------------


def test_schedule_is_the_posterior():
    """Bayes' rule on x_{t−1} given x_t and x_0, in another arrangement."""
    kept = SCHEDULE.alphas_bar
    for t in range(1, T):
        alpha, before = kept[t] / kept[t - 1], kept[t - 1]
        precision = 1 / (1 - before) + alpha / (1 - alpha)
        assert SCHEDULE.low[t].exp() == pytest.approx(1 / precision.item())
        assert SCHEDULE.clean[t] == pytest.approx((before.sqrt() / (1 - before) / precision).item())
        assert SCHEDULE.current[t] == pytest.approx((alpha.sqrt() / (1 - alpha) / precision).item())
        assert SCHEDULE.high[t].exp() == pytest.approx(1 - alpha.item())
    assert SCHEDULE.clean[0] == pytest.approx(1)
    assert SCHEDULE.current[0] == pytest.approx(0)
    assert SCHEDULE.low[0] == SCHEDULE.low[1]


def test_the_best_denoiser_keeps_the_data():
    """From N(0, I), many steps of it lead to the data's own law."""
    schedule = DiffusionSchedule.trained("cosine").respaced(1000)
    target = LinearGaussian.of_data(SPREAD, schedule)
    reach = target.mean_path(torch.ones(SIZE).double(), torch.zeros(SIZE).double())[-1]
    variance = target.covariance()[-1, -1] + reach**2
    assert variance.sqrt().tolist() == pytest.approx(SPREAD.tolist(), rel=0.02)


def test_frozen_is_the_target_itself_on_standard_data():
    """Where the velocity does not change, the free drafter knows every law: all of it stands."""
    target = LinearGaussian.of_data(torch.ones(SIZE).double(), SCHEDULE, 0.3)
    _, stats, *_ = generate(CASES["frozen"][0], GammaMaximalRule(), range(4), 5, target, 0.0)
    assert stats.acceptance_by_position == pytest.approx([1.0] * 5)
    assert stats.calls == [1 + -(-(T - 1) // 6)] * 4
    assert stats.alone == 1


def test_frozen_law_by_hand():
    """Velocity and variance share of the first call, carried to the next two steps."""
    drafter = FrozenDrafter(SCHEDULE, temperature=0.9)
    context = Context.empty(2, T, first=normal(2, 1, SIZE))
    drafter.start(context)
    empty = drafter.propose(context, [3, 2], ProductionCoins([0, 1]).round(0)[0])
    assert empty.nodes == 0
    hot = LinearGaussian(TARGET.gain, TARGET.pull, TARGET.std * 0.9)
    judge = DenoisingTarget(hot, normal(2, SIZE, seed=3))
    scores = judge.score(context, empty)
    verdict = GammaMaximalRule().verify(empty, scores, ProductionCoins([0, 1]).round(0)[1])
    x, mean = context.last[:, 0], scores.gaussian.mean[:, 0]
    drafter.observe(context, empty, scores, verdict)
    context.tokens[:, 0], context.last = verdict.emitted[:, 0], verdict.last
    context.lengths, context.base, context.round = torch.tensor([1, 1]), [1, 1], 1
    draft = drafter.propose(context, [3, 2], ProductionCoins([0, 1]).round(1)[0])
    clean = (mean - SCHEDULE.current[T - 1] * x) / SCHEDULE.clean[T - 1]
    root = SCHEDULE.alphas_bar[T - 1]
    velocity = (root.sqrt() * x - clean) / (1 - root).sqrt()
    before = context.last[:, 0]
    for n in range(3):
        t = T - 2 - n
        kept = SCHEDULE.alphas_bar[t]
        predicted = kept.sqrt() * before - (1 - kept).sqrt() * velocity
        law = SCHEDULE.clean[t] * predicted + SCHEDULE.current[t] * before
        assert torch.allclose(draft.law.mean[:, n], law)
        std = 0.9 * ((0.7 * SCHEDULE.low[t] + 0.3 * SCHEDULE.high[t]) / 2).exp()
        assert torch.allclose(draft.law.std[:, n], std.expand(2, SIZE))
        before = draft.tokens[:, n]
    assert draft.lengths.tolist() == [3, 2]


@pytest.mark.parametrize("drafter", ["frozen", "small"])
def test_drafts_follow_their_law(drafter):
    """What was drafted is the stated mean plus the stated deviation times the coins' noise."""
    found = []

    def watched(condition):
        drafts = CASES[drafter][0](condition)
        propose = drafts.propose

        def watch(context, budget, coins):
            draft = propose(context, budget, coins)
            noise = coins.normal((draft.nodes, SIZE)) if draft.nodes else draft.tokens
            found.append((draft.tokens, draft.law.mean + draft.law.std * noise, draft.live()))
            return draft

        drafts.propose = watch
        return drafts

    generate(watched, GammaMaximalRule(), range(3))
    assert len(found) > 2
    for tokens, truth, live in found:
        assert torch.allclose(tokens[live], truth[live])


# --- whole tokens ---------------------------------------------------------------------------------


def test_last_noisy_law_by_hand():
    noise, condition = normal(2, T - 1, SIZE), normal(2, SIZE, seed=1)
    x = noise[:, 0]
    for t in range(T - 1, 1, -1):
        x = TARGET.gain[t] * x + TARGET.pull[t] * condition + TARGET.std[t] * noise[:, T - t]
    mean, std = last_noisy_law(TARGET, noise, condition)
    assert torch.allclose(mean, TARGET.gain[1] * x + TARGET.pull[1] * condition)
    assert torch.allclose(std, TARGET.std[1].expand(2, SIZE))


def test_an_aligned_token_follows_the_target_given_the_noise():
    """One token in one dimension: shared noises fixed, the last noisy step by quadrature."""
    head = MarkovHead.of_data(torch.tensor([0.5]).double(), SCHEDULE, 0.3)
    small = MarkovHead(head.gain * 0.999, head.pull, head.std)
    plan, rows = MarPlan(2, 2, diffusion_steps=T), 32
    target, drafting = (MarkovTokens(m, plan, range(rows), 1.0, 0.0) for m in (head, small))
    prediction = next(target.predictions(torch.zeros(rows, 2, 1).double(), [1, 1]))
    shared, condition = normal(1, T - 1, 1, seed=4), prediction.condition
    p, q = (Gaussian(*last_noisy_law(m, shared, condition[:1])) for m in (head, small))
    apart = ((p.mean - q.mean) / p.std).abs().item()
    assert 0.1 < apart < 6
    drafts, weights = normal_rule(16, *crossings(p, q))
    assert len(drafts) == rows
    shared = shared.expand(rows, -1, -1)
    judge = DenoisingTarget(head, condition, left=2)
    first = walk(head, shared, condition)[:, None]
    context = Context.empty(rows, 2, first=first)

    class Given(ProductionCoins):
        def normal(self, shape, index=0):
            return drafts[:, None]

    draft = AlignedDrafter(drafting, prediction, shared).propose(context, [1] * rows, Given([0]))
    assert torch.allclose(draft.tokens[:, 0, 0], q.mean[0, 0] + q.std[0, 0] * drafts)
    laws = judge.score(context, draft).gaussian
    assert torch.allclose(laws.mean[:, 0], p.mean)
    frequency = 1 / p.std.item()

    def value(verdict):
        return (1j * frequency * (verdict.emitted[:, 0] - p.mean)).exp()

    found = emitted_mean(
        GammaMaximalRule(), draft.tokens, weights, laws, draft.law, *noise_rule(1, 12), value
    )
    assert abs(found[0] - torch.tensor(-0.5).exp()) < EXACT


class Mean(ProductionCoins):
    """No noise: what is linear in it gives its mean."""

    def normal(self, shape, index=0):
        return torch.zeros(len(self._keys), *shape, dtype=torch.float64)


def test_copies_behind_a_draft_are_of_another_picture():
    """Why "cspd" drafts one iteration at a time.

    Two heads that differ in the last step alone, which adds no noise: every draft stands. A masked
    copy that scores the second token has read the first as the drafter ends it, and the output
    holds it as the target does: the second follows a picture that nobody draws.
    """
    head = MarkovHead.of_data(SPREAD, SCHEDULE, 0.3)
    other = replace(head, pull=head.pull + 0.2 * (torch.arange(T) == 0)[:, None])
    plan, tokens = MarPlan(2, 2, diffusion_steps=T), torch.zeros(1, 2, SIZE, dtype=torch.float64)
    target, small = (MarkovTokens(m, plan, [0], 1.0, 0.6) for m in (head, other))
    prediction = next(target.predictions(tokens, [2]))
    noise = torch.zeros(2, T - 1, SIZE, dtype=torch.float64)
    context = Context.empty(2, 2, first=noise[:, :1])
    drafter = AlignedDrafter(small, prediction, noise)
    draft = drafter.propose(context, [1, 1], Mean([0, 0]))
    x, zero = draft.tokens[:, 0], torch.zeros(1, dtype=torch.long)

    def drawn(ends):
        """The second token, whose condition has read the first as a head ends it."""
        read = ends.step(x[:1], zero, prediction.condition[:1])[0][None]
        condition = target.told(range(1, 2), read, *prediction.positions.split(1, dim=1), T)
        mean, std = last_noisy_law(head, noise[1:], condition)
        return mean, std, head.step(mean, zero, condition)[0][0]

    mean, std, second = drawn(other)
    assert torch.allclose(draft.law.mean[1], mean)  # the ratio is 1 whatever x is
    assert torch.allclose(draft.law.std[1], std)
    assert torch.allclose(drawn(head)[2], target.law(2)[0])
    assert torch.allclose(second - target.law(2)[0], head.reach * target.slope * 0.2)


class Half(LinearGaussian):
    """Reads its inputs in half precision, as a head of such weights does."""

    def step(self, x, t, condition):
        return super().step(x.half().double(), t, condition)


@pytest.mark.parametrize("rule", [GammaMaximalRule(), GaussianBlockRule(), ReflectionRule()])
def test_a_law_behind_a_draft_that_fell_is_nobodys(rule):
    """A finite draft may be no number of the target's, and falls: the target is sound."""
    wild = replace(SMALL, gain=SMALL.gain * 1e6)
    target = Half(TARGET.gain, TARGET.pull, TARGET.std)
    drafter = lambda condition: DenoisingDrafter(wild, condition)  # noqa: E731
    context, stats, *_ = generate(drafter, rule, range(2), target=target)
    assert context.tokens[:, :T].isfinite().all()
    assert stats.accepted == [0, 0]
