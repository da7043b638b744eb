"""Speculation in the continuous image pipeline: identities with plain chains, calls, refusals."""

from __future__ import annotations

import json
import logging
import re
from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from mars import captioned_pipeline, seeds, tiny_mar, tiny_vae

from benchmarks.toy_chains import LinearGaussian
from mmspec import ContinuousImagePipeline, SpecConfig
from mmspec.cli.main import main
from mmspec.engine.accept.gaussian.gamma_maximal import GammaMaximalRule
from mmspec.engine.accept.gaussian.independent import IndependentRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.laws import TargetError
from mmspec.engine.stats import SpecStats
from mmspec.errors import InputError
from mmspec.eval.showcase import called
from mmspec.methods import serving
from mmspec.models.mar.denoiser import HeadDenoiser, PackedHead
from mmspec.models.mar.denoising_target import last_noisy_law
from mmspec.models.mar.iterations import HeadPrediction, MarBackbone, MarPlan, plainly
from mmspec.models.mar.schedule import DiffusionSchedule
from mmspec.pipelines.continuous.speculation import ContinuousSpeculation
from mmspec.pipelines.continuous.stats import ContinuousStats
from mmspec.pipelines.costs import Costs
from mmspec.registry import resolve

T = 9
CALL = dict(num_iterations=6, diffusion_steps=T, output_type="latent")
PLAN = MarPlan(16, 6, 2.0, diffusion_steps=T, temperature=0.9)
STEPPED = ("gamma-maximal", "gaussian-block", "reflection")
METHODS = serving("continuous")


@pytest.fixture(scope="module")
def pipe() -> ContinuousImagePipeline:
    """Told classes, in double precision, with a drafter."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        told = dict(condition="class", class_num=5)
        target, drafter = tiny_mar(**told), tiny_mar(**told, diffloss_w=8)
        made = ContinuousImagePipeline(
            target.double(), tiny_vae().double(), drafter=drafter.double()
        )
    made.set_progress_bar_config(disable=True)
    return made


@pytest.fixture(autouse=True)
def plain_again(pipe):
    yield
    pipe.disable_speculation()
    pipe.on_engine = None


def backbone(model, labels=(1, 3), plan=PLAN) -> MarBackbone:
    told = model.classes(torch.tensor(labels))
    buffer = torch.cat([told, model.nothing(len(labels))][: 1 + plan.guided])
    return MarBackbone(model, PackedHead(model.head), buffer, plan, list(range(len(labels))))


def predicted(model, spans=None, plan=PLAN, iteration=2):
    """A prediction in the middle of two pictures, the tokens before it drawn plainly."""
    tokens = torch.zeros(2, 16, 4, dtype=torch.float64)
    for prediction in backbone(model, plan=plan).predictions(tokens, spans):
        if prediction.iterations[0] == iteration:
            return prediction
        at = prediction.positions[..., None].expand(-1, -1, 4)
        tokens.scatter_(1, at, plainly(prediction).unflatten(0, (2, -1)))
    raise AssertionError


@pytest.mark.parametrize("method", METHODS)
def test_callback_is_told_what_was_drafted(pipe, method):
    """Every place once; of steps that may be drafted, the share is that of the counters."""
    pipe.enable_speculation(SpecConfig(method))
    positions, shares = [], []

    def callback(_, iteration, tokens, told):
        assert told["positions"].shape == told["drafted"].shape
        positions.append(told["positions"])
        shares.append(told["drafted"])
        emitted = sum(place.numel() for place in positions)
        assert len(told["stats"].accepted) == emitted

    out = pipe(class_labels=[1, 3], callback_on_step_end=callback, **CALL)
    assert torch.cat(positions, 1).sort().values.tolist() == [list(range(16))] * 2
    drafted = torch.cat([share.flatten() for share in shares])
    if method == "drafter-only":
        assert drafted.tolist() == [1] * 32
    else:
        most = 1 if METHODS[method].drafter == "aligned" else T - 1  # steps that may be drafted
        wanted = torch.tensor(out.stats.accepted) / most
        assert torch.allclose(drafted, wanted.to(drafted))


def test_the_target_as_its_own_drafter_drafts_everything(pipe):
    twins = ContinuousImagePipeline(pipe.transformer, pipe.vae, drafter=pipe.transformer)
    twins.set_progress_bar_config(disable=True)
    twins.enable_speculation(SpecConfig("cspd"))
    shares = []
    twins(
        class_labels=[1],
        callback_on_step_end=lambda *given: shares.append(given[-1]["drafted"]),
        **CALL,
    )
    assert torch.cat(shares, 1).tolist() == [[1] * 16]


@pytest.mark.parametrize("method", ["cspd", "cspd-independent"])
def test_aligned_drafts_are_judged_at_the_last_noisy_step(pipe, method):
    """Per step, what is judged and what stands; a drafter equal to the target stands."""
    twins = ContinuousImagePipeline(pipe.transformer, pipe.vae, drafter=pipe.transformer)
    twins.set_progress_bar_config(disable=True)
    # of an iteration behind drafts the two have read other pictures: one span, as wide as it takes
    settings = {"num_draft_tokens": 1} if method == "cspd-independent" else {}
    twins.enable_speculation(SpecConfig(method, **settings))
    stats = twins(class_labels=[1, 2], generator=seeds(1, 2), **CALL).stats
    first = 0 if method == "cspd" else 2 * MarPlan(16, 6).drawn(0)  # prefilled by the target
    assert sum(stats.accepted) == 32 - first
    assert stats.judged_by_step == stats.stood_by_step == [0] * (T - 2) + [32 - first]
    assert stats.acceptance_by_position == [1.0]


def test_iterations_behind_drafts_fall(pipe):
    """Of drafts of several iterations: what stood is counted where it stood."""
    twins = ContinuousImagePipeline(pipe.transformer, pipe.vae, drafter=pipe.transformer)
    twins.set_progress_bar_config(disable=True)
    twins.enable_speculation(SpecConfig("cspd-independent"))
    stats = twins(class_labels=[1, 2], generator=seeds(1, 2), **CALL).stats
    assert 0 < sum(stats.accepted) < sum(stats.drafted)
    assert stats.judged_by_step == [0] * (T - 2) + [sum(stats.drafted)]
    assert stats.stood_by_step == [0] * (T - 2) + [sum(stats.accepted)]


def speculation(config, small=None, plan=PLAN, **more) -> ContinuousSpeculation:
    complete = config.resolve("continuous")
    return ContinuousSpeculation(complete, plan, 2, small, ContinuousStats(), **more)


# --- the law --------------------------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize("rule", STEPPED)
@pytest.mark.parametrize("length", [1, 3, 16])
def test_a_drafter_equal_to_the_target(pipe, rule, length):
    """All drafts stand, and the tokens are the plain chain's with the noises of the coins."""
    model = pipe.transformer
    config = SpecConfig(method=rule, drafter="denoiser", num_draft_tokens=length)
    plan = MarPlan(16, 6, 2.0, diffusion_steps=T)
    prediction = predicted(model, plan=plan)
    spec = speculation(config, backbone(model, plan=plan), plan)
    drawn = spec.draw(prediction)
    noises, left, number = [prediction.noises(1)], T, 0
    while left:
        proposal, verification = prediction.coins.round(number)
        depth = min(length, left - 1)
        noises += [proposal.normal((depth, 4))] if depth else []
        noises.append(verification.normal((1, 4)))
        left, number = left - depth - 1, number + 1
    chain = prediction.denoiser.sample(prediction.condition, torch.cat(noises, 1)[:, :T])
    assert torch.allclose(drawn, chain, rtol=1e-9, atol=1e-9)
    stats = spec.stats
    assert sum(stats.accepted) == sum(stats.drafted) == len(drawn) * (T - number)
    assert stats.head_calls == number == -(-T // (length + 1))
    assert stats.head_rows == len(drawn) * T * 2
    assert (stats.drafter_backbone_calls, stats.drafter_head_calls) == (1, T - number)


@torch.inference_mode()
@pytest.mark.parametrize("rule", [*STEPPED, "cspd"])
def test_a_draft_that_never_stands_is_no_harm(pipe, rule, monkeypatch):
    """The laws that the rule is shown are the target's, whatever is drafted."""
    plan = MarPlan(16, 6, 2.0, diffusion_steps=T)
    prediction = predicted(pipe.transformer, plan=plan)
    denoiser, seen = prediction.denoiser, []

    def watch(engine):
        score = engine.target.score

        def watched(context, draft):
            scores = score(context, draft)
            seen.append((context.lengths.clone(), context.last.clone(), draft, scores.gaussian))
            return scores

        engine.target.score = watched

    spec = speculation(
        SpecConfig(method=rule), backbone(pipe.drafter, plan=plan), plan, on_engine=watch
    )
    drawn = spec.draw(prediction)
    steps = 2 if rule == "cspd" else T
    judged = 0
    for lengths, last, draft, laws in seen:
        before = torch.cat([last, draft.tokens], 1)
        for row, done in enumerate(lengths.tolist()):
            for n in range(int(draft.lengths[row]) + 1):
                t = steps - 1 - done - n
                if done == steps:
                    continue
                one = slice(row, row + 1)
                wanted = denoiser.step(before[one, n], torch.tensor([t]), prediction.condition[one])
                assert torch.allclose(laws.mean[row, n], wanted[0][0], atol=1e-9)
                assert torch.allclose(laws.std[row, n], wanted[1][0], atol=1e-12)
                judged += 1
    assert judged == sum(spec.stats.target_tokens) - (rule == "cspd") * len(drawn) * (T - 2)
    assert drawn.isfinite().all()


@torch.inference_mode()
def test_cspd_shares_its_noises(pipe):
    """Both laws are those of the last noisy step behind the same noises; the target finishes."""
    prediction, seen = predicted(pipe.transformer), []
    small = backbone(pipe.drafter)

    def watch(engine):
        verify = engine.rule.verify

        def watched(draft, scores, coins):
            verdict = verify(draft, scores, coins)
            seen.append((draft, scores.gaussian, verdict))
            return verdict

        engine.rule.verify = watched

    spec = speculation(SpecConfig(method="cspd"), small, on_engine=watch)
    assert isinstance(spec.rule, GammaMaximalRule)
    drawn = spec.draw(prediction)
    noise = prediction.noises(T - 1)
    draft, laws, verdict = seen[0]
    own = last_noisy_law(prediction.denoiser, noise, prediction.condition)
    theirs = last_noisy_law(small.denoiser(T), noise, small.told(*prediction.asked, T))
    for found, wanted in ((laws, own), (draft.law, theirs)):
        assert torch.allclose(found.mean[:, 0], wanted[0], atol=1e-9)
        assert torch.allclose(found.std[:, 0], wanted[1], atol=1e-12)
    zero = torch.zeros(len(drawn), dtype=torch.long)
    finished = prediction.denoiser.step(verdict.emitted[:, 0], zero, prediction.condition)[0]
    assert torch.allclose(drawn, finished, atol=1e-9)
    fell = int((verdict.accepted == 0).any())
    assert spec.stats.head_calls == T - 1 + fell
    assert spec.stats.calls == [T - 1 + int(not kept) for kept in verdict.accepted.tolist()]


@torch.inference_mode()
def test_cspd_of_equal_models_stands(pipe):
    prediction = predicted(pipe.transformer)
    spec = speculation(SpecConfig(method="cspd"), backbone(pipe.transformer))
    drawn = spec.draw(prediction)
    own = prediction.coins.round(0)[0].normal((1, 4))
    chain = torch.cat([prediction.noises(T - 1), own], 1)
    assert torch.allclose(drawn, prediction.denoiser.sample(prediction.condition, chain), atol=1e-9)
    assert spec.stats.accepted == [1] * len(drawn)
    assert spec.stats.head_calls == T - 1


@torch.inference_mode()
def test_independent_iterations_share_what_is_known(pipe):
    """Several iterations: their drafter reads its own drafts, the target the known tokens alone."""
    spans = [1, 1, 3, 1]
    prediction = predicted(pipe.transformer, spans)
    small, seen = backbone(pipe.drafter), []

    def watch(engine):
        engine.rule = SimpleNamespace(contract="lossy", local=True, verify=verify)

    def verify(draft, scores, coins):
        seen.append(draft)
        return IndependentRule(1e6).verify(draft, scores, coins)

    config = SpecConfig(method="cspd-independent", num_draft_tokens=3)
    spec = speculation(config, small, on_engine=watch)
    drawn = spec.draw(prediction).unflatten(0, prediction.positions.shape)
    assert prediction.iterations == range(2, 5)
    assert prediction.positions.shape[1] == sum(PLAN.drawn(k) for k in (2, 3, 4))
    draft, done = seen[0], 0
    noise = prediction.noises(T - 1).unflatten(0, prediction.positions.shape)
    x = draft.tokens[:, 0].unflatten(0, prediction.positions.shape)
    mean = draft.law.mean[:, 0].unflatten(0, prediction.positions.shape)
    read, known = prediction.read, prediction.known
    for k in prediction.iterations:
        part = slice(done, done + PLAN.drawn(k))
        done, wanted = part.stop, prediction.positions[:, part]
        condition = small.told(range(k, k + 1), read, known, wanted, T)
        law = last_noisy_law(small.denoiser(T), noise[:, part].flatten(0, 1), condition)
        assert torch.allclose(mean[:, part].flatten(0, 1), law[0], atol=1e-9)
        zero = torch.zeros(len(condition), dtype=torch.long)
        clean = small.denoiser(T).step(x[:, part].flatten(0, 1), zero, condition)[0]
        read = torch.cat([read, clean.unflatten(0, wanted.shape)], 1)
        known = torch.cat([known, wanted], 1)
    zero = torch.zeros(x.shape[0] * x.shape[1], dtype=torch.long)
    finished = prediction.denoiser.step(x.flatten(0, 1), zero, prediction.condition)[0]
    kept = torch.tensor(spec.stats.accepted, dtype=torch.bool)
    assert kept.any()
    assert torch.allclose(drawn.flatten(0, 1)[kept], finished[kept], atol=1e-9)
    assert (spec.stats.drafter_backbone_calls, spec.stats.head_calls) == (3, T)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [float("nan"), 1e300])
def test_a_head_that_overflows_draws_nothing(pipe, method, value):
    """Whoever denoises, in the loop or without it: no picture without numbers."""
    parts = {"transformer": pipe.transformer, "drafter": pipe.drafter}
    component = "drafter" if method == "drafter-only" else "transformer"
    parts[component] = deepcopy(parts[component])
    with torch.no_grad():
        parts[component].head.final_layer.linear.bias.fill_(value)
    broken = ContinuousImagePipeline(vae=pipe.vae, **parts)
    broken.set_progress_bar_config(disable=True)
    broken.enable_speculation(SpecConfig(method=method))
    with pytest.raises(TargetError, match="no numbers"):
        broken(class_labels=[1, 2], generator=seeds(1, 2), **CALL)


# --- calls ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SmoothHead(LinearGaussian):
    """The best head of data N(0, I), as one of MAR's."""

    channels = 2
    schedule = DiffusionSchedule.trained("cosine").respaced(100)
    head = SimpleNamespace(weight=torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize("length", [2, 4, 8])
def test_the_free_drafter_saves_calls_on_smooth_chains(length):
    head = SmoothHead.of_data(torch.ones(2).double(), SmoothHead.schedule, 0.3)
    positions = torch.arange(6).view(2, 3)
    coins = ProductionCoins([1, 2]).at(torch.tensor([0, 0, 0, 1, 1, 1]), positions.flatten())
    none, zeros = positions[:, :0], torch.zeros(6, 2).double()
    prediction = HeadPrediction(range(1), positions, none, zeros[:2, None, :0], zeros, head, coins)
    plan = MarPlan(16, 16, diffusion_steps=100)
    spec = speculation(SpecConfig(method="gamma-maximal", num_draft_tokens=length), plan=plan)
    spec.draw(prediction)
    assert spec.stats.head_calls == 1 + -(-99 // (length + 1))
    assert spec.stats.acceptance_by_position == pytest.approx([1.0] * length)
    # of six tokens, but for the first step, the target's own ones and the last, which has no noise
    own = {n for n in range(100) if n % (length + 1) == 0 or n == 99}
    assert spec.stats.judged_by_step == [0 if n in own else 6 for n in range(99)]
    assert spec.stats.stood_by_step == spec.stats.judged_by_step


@pytest.mark.parametrize("method", METHODS)
def test_calls_are_those_that_were_made(pipe, method, monkeypatch):
    made = {"target": [], "drafter": []}
    step, target = HeadDenoiser.step, pipe.transformer.head

    def counted(self, x, t, condition):
        made["target" if self.head.head is target else "drafter"].append(len(x))
        return step(self, x, t, condition)

    pipe = clocked(pipe, monkeypatch, 100.0)  # no calls that only time it
    monkeypatch.setattr(HeadDenoiser, "step", counted)
    pipe.enable_speculation(SpecConfig(method=method))
    stats = pipe(class_labels=[1, 2], generator=seeds(1, 2), **CALL).stats
    assert stats.head_calls == len(made["target"])
    assert stats.head_rows == 2 * sum(made["target"])
    assert stats.drafter_head_calls == len(made["drafter"])
    assert stats.drafter_head_rows == 2 * sum(made["drafter"])
    assert stats.head_rows == 2 * sum(stats.target_tokens)
    assert len(stats.calls) == 2 * 16
    assert max(stats.calls) <= stats.head_calls
    assert stats.scored == stats.head_calls
    assert stats.emitted == [T] * 32  # denoising steps, those of a walk before drafts too
    assert sum(stats.stood_by_step) == sum(stats.accepted)
    assert all(n <= m for n, m in zip(stats.stood_by_step, stats.judged_by_step, strict=True))
    assert (stats.method, stats.pictures) == (method, 2)
    lossy = method in ("drafter-only", "cspd-independent")
    assert stats.contract == ("lossy" if lossy else "exact")
    assert stats.mean_acceptance_length == (
        0 if method == "drafter-only" else 32 * T / sum(stats.calls)
    )


def test_backbone_calls(pipe):
    found = {}
    for method in METHODS:
        pipe.enable_speculation(SpecConfig(method=method))
        stats = pipe(class_labels=1, generator=seeds(1), **CALL).stats
        found[method] = stats.backbone_calls, stats.drafter_backbone_calls
    assert found == {
        "plain": (6, 0),
        "drafter-only": (0, 6),
        "gamma-maximal": (6, 0),
        "gaussian-block": (6, 0),
        "reflection": (6, 0),
        "cspd": (6, 6),
        "cspd-independent": (2, 5),  # one alone, and the others at once
    }


# --- what does not pay, and what fails ------------------------------------------------------------


def clocked(pipe, monkeypatch, step: float) -> ContinuousImagePipeline:
    """The same with notices of its own, whose plain steps take `step` seconds by declaration."""
    made = ContinuousImagePipeline(pipe.transformer, pipe.vae, drafter=pipe.drafter)
    made.set_progress_bar_config(disable=True)
    monkeypatch.setattr(Costs, "_step", lambda *_: step)
    return made


@pytest.mark.parametrize("method", METHODS)
def test_slowness_is_said_once(pipe, method, monkeypatch, caplog):
    slow = clocked(pipe, monkeypatch, 0.0)
    slow.enable_speculation(SpecConfig(method=method))
    silent = method in ("plain", "drafter-only")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            stats = slow(class_labels=1, generator=seeds(1), **CALL).stats
    pattern = rf"speculation \({method}\) took .* s where plain decoding takes about"
    found = [record.message for record in caplog.records]
    assert len(found) == (0 if silent else 1)
    assert all(re.match(pattern, line) for line in found)
    assert stats.fault is None


@pytest.mark.parametrize("method", ["reflection", "cspd-independent"])
def test_what_pays_is_not_spoken_of(pipe, method, monkeypatch, caplog):
    fast = clocked(pipe, monkeypatch, 100.0)
    fast.enable_speculation(SpecConfig(method=method))

    def stop(pipe, *_) -> None:
        pipe.interrupt = True

    with caplog.at_level(logging.WARNING):
        fast(class_labels=1, generator=seeds(1), **CALL)
        slow = clocked(pipe, monkeypatch, 0.0)  # what is cut short has no plain seconds
        slow.enable_speculation(SpecConfig(method=method))
        slow(class_labels=1, generator=seeds(1), callback_on_step_end=stop, **CALL)
    assert not caplog.records


def test_plain_steps_are_timed_once_a_size(pipe, monkeypatch):
    """Of every number of tokens that iterations draw, for so many pictures."""
    prediction, sizes = predicted(pipe.transformer), []
    sample = HeadDenoiser.sample

    def watched(self, condition, noise):
        sizes.append(tuple(noise.shape))
        return sample(self, condition, noise)

    monkeypatch.setattr(HeadDenoiser, "sample", watched)
    costs, given = Costs(), (prediction.denoiser, prediction.condition, PLAN, 3)
    seconds = costs.plain(*given)
    assert costs.plain(*given) == seconds > 0
    drawn = {PLAN.drawn(k) for k in range(PLAN.iterations)}
    assert sorted({size[0] for size in sizes}) == sorted(3 * count for count in drawn)
    assert len(sizes) == 3 * len(drawn)
    monkeypatch.setattr(costs, "_step", lambda denoiser, condition, rows: float(rows))
    assert costs.plain(*given) == 3 * 16 * T


@pytest.mark.parametrize(
    ("method", "drafter", "where"),
    [
        ("reflection", "frozen", "mmspec.draft.denoising.frozen.FrozenDrafter.path"),
        ("gamma-maximal", "denoiser", "mmspec.draft.denoising.small_head.DenoisingDrafter.path"),
        ("gaussian-block", "denoiser", "mmspec.models.mar.iterations.MarBackbone.told"),
        ("cspd", None, "mmspec.draft.denoising.aligned.AlignedDrafter._draw"),
        ("cspd-independent", None, "mmspec.draft.denoising.aligned.AlignedDrafter._draw"),
    ],
)
def test_a_drafter_that_raises_is_left_alone(pipe, method, drafter, where, monkeypatch, caplog):
    """One warning, then plain denoising, one iteration at a time, and the counters add up."""
    holder, name = where.rsplit(".", 1)
    kind = resolve(":".join(holder.rsplit(".", 1)))
    own = getattr(kind, name)

    def fails(self, *given):
        if isinstance(self, MarBackbone) and self.model is not pipe.drafter:
            return own(self, *given)
        raise RuntimeError("out of order")

    monkeypatch.setattr(kind, name, fails)
    pipe.enable_speculation(SpecConfig(method, drafter=drafter))
    with caplog.at_level(logging.WARNING):
        out = pipe(class_labels=[1, 2], generator=seeds(1, 2), **CALL)
    assert out.images.isfinite().all()
    stats = out.stats
    assert stats.fault == "RuntimeError: out of order"
    assert [record.message for record in caplog.records] == [
        "the drafter failed (RuntimeError: out of order); decoding goes on without it"
    ]
    assert (sum(stats.drafted), sum(stats.accepted), stats.emitted) == (0, 0, [T] * 32)
    assert stats.calls == stats.target_tokens == [T] * 32
    assert stats.head_rows == 2 * sum(stats.calls)
    # of "cspd-independent" the span in which it failed is drawn at once, as it was scored
    assert stats.backbone_calls == (2 if method == "cspd-independent" else 6)


# --- the pipeline ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_picture_does_not_depend_on_its_neighbours(pipe, method):
    pipe.enable_speculation(SpecConfig(method=method))
    batch = pipe(class_labels=[1, 2, 3], generator=seeds(7, 8, 9), **CALL).images
    alone = pipe(class_labels=2, generator=seeds(8), **CALL).images
    assert batch.isfinite().all()
    assert torch.allclose(batch[1], alone[0], atol=1e-6)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "plain"])
def test_on_and_off(pipe, method):
    def draw():
        return pipe(class_labels=1, generator=seeds(3), **CALL).images

    before = draw()
    pipe.enable_speculation(SpecConfig(method=method))
    assert not torch.allclose(draw(), before, atol=1e-3)
    pipe.disable_speculation()
    assert torch.equal(draw(), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_laws_are_finer_than_the_weights(dtype, monkeypatch):
    """Of a head whose output is given, the laws in half precision are those in double."""
    said = torch.randn(100, 2, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    monkeypatch.setattr(PackedHead, "__call__", lambda self, x, y: said.to(y))
    x, t, laws = torch.linspace(-2, 2, 400).view(100, 4), torch.arange(100), {}
    for kind in (dtype, torch.float64):
        head = tiny_mar().to(kind).head
        schedule = DiffusionSchedule.trained("cosine").respaced(100)
        denoiser = HeadDenoiser(PackedHead(head), schedule, temperature=0.9)
        z = torch.zeros(100, 2, head.cond_embed.in_features, dtype=kind)
        laws[kind] = denoiser.step(x, t, denoiser.condition(z, 2.7))
    (mean, std), (fine, deviation) = laws[dtype], laws[torch.float64]
    assert mean.dtype == torch.float32
    assert ((mean - fine).abs()[1:] < 1e-3 * deviation[1:]).all()
    assert torch.allclose(std.double(), deviation, rtol=1e-4)


def test_half_precision(pipe):
    """Chains are kept finer than the weights."""
    half = captioned_pipeline().to(torch.bfloat16)
    half.set_progress_bar_config(disable=True)
    seen = []
    half.on_engine = lambda engine: seen.append(engine)
    for method in METHODS:
        half.enable_speculation(SpecConfig(method=method))
        out = half("a red circle", generator=seeds(1), **CALL).images
        assert out.dtype == torch.bfloat16
        assert out.isfinite().all()
    assert len(seen) == 6 * (len(METHODS) - 3) + 1  # two never ask; one asks once


@pytest.mark.parametrize(
    ("config", "call", "message"),
    [
        (SpecConfig(method="gamma-maximal"), dict(temperature=0), "at temperature 0 no step adds"),
        (SpecConfig(method="cspd"), dict(temperature=0), "use method 'plain'"),
    ],
)
def test_plans_that_can_not_be_coupled(pipe, config, call, message):
    pipe.enable_speculation(config)
    with pytest.raises(InputError, match=message):
        pipe(class_labels=1, **CALL, **call)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (SpecConfig(method="sjd"), "is for a model that draws pictures, and this one draws"),
    ],
)
def test_methods_that_do_not_fit(pipe, config, message):
    with pytest.raises(InputError, match=message):
        pipe.enable_speculation(config)


def test_a_missing_drafter(pipe):
    alone = ContinuousImagePipeline(pipe.transformer, pipe.vae)
    for method in ("cspd", "cspd-independent", "drafter-only"):
        with pytest.raises(InputError, match=r"'drafter' .* load one or use 'gamma-maximal'"):
            alone.enable_speculation(SpecConfig(method=method))


def test_vectors_are_no_ids():
    for method in ("gamma-maximal", "cspd"):
        for modality in ("image", "vlm"):
            with pytest.raises(InputError, match="draws pictures of continuous tokens, and this"):
                SpecConfig(method=method).resolve(modality)


# --- the command ----------------------------------------------------------------------------------


def test_calls_of_networks_are_told_apart():
    """Where pictures are drawn alone, not those of their tokens."""
    drawn = ContinuousStats(calls=[100] * 9, pictures=1, head_calls=300, backbone_calls=3)
    assert called([drawn, drawn]) == "300 head calls, 3 backbone calls"
    small = ContinuousStats(calls=[0] * 9, pictures=1, drafter_head_calls=300)
    assert called([small]) == "300 drafter's head calls"
    assert called([SpecStats(calls=[16])]) == "16 target calls"


def test_generate(tmp_path, capsys):
    captioned_pipeline().save_pretrained(tmp_path / "model")
    words = ["generate", "a red circle", "-o", str(tmp_path / "out")]
    words += ["--model", str(tmp_path / "model")]  # whose tokens are vectors, as its folder says
    few = ["--iterations", "3", "--diffusion-steps", "4"]
    assert main([*words, *few, "--compare", "-n", "2", "--seed", "5"]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("plain-5.png", "plain-6.png", "reflection-5.png", "reflection-6.png"),
        *("side-by-side.png", "stats.json"),
    ]
    record = json.loads((tmp_path / "out" / "stats.json").read_text())["methods"]
    assert record["plain"]["head_calls"] == 2 * 3 * 4
    assert record["reflection"]["backbone_calls"] == 2 * 3
    head, plain, fast = capsys.readouterr().out.splitlines()[:3]
    assert "drafter's" not in head

    def printed(line: str, title: str) -> str:
        return line[head.index(title) :].split()[0]

    # of a picture: 3 iterations of 4 steps, one after the other, however many tokens they draw
    assert (printed(plain, "head calls"), printed(plain, "backbone calls")) == ("12.0", "3.0")
    assert float(printed(fast, "head calls")) == record["reflection"]["head_calls"] / 2
    assert printed(fast, "backbone calls") == "3.0"
    for more, said in (
        (["--top-k", "5"], "--top-k and --top-p choose among token ids"),
        (["--method", "sjd"], "method 'sjd' is for a model that draws pictures"),
        (["--iterations", "99"], "iterations must be from 1 to 16, not 99"),
    ):
        assert main([*words, *more]) == 2
        assert said in capsys.readouterr().err
    assert main([*words, *few, "--method", "gamma-maximal", "--least-variance"]) == 0
    capsys.readouterr()
    assert main(["generate", "a star", "--iterations", "3", "-o", str(tmp_path / "out")]) == 2
    assert "--iterations is of --pipeline continuous" in capsys.readouterr().err
