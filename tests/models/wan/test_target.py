"""Block video on the engine: what any sequence of verdicts leaves behind, and who made what."""

from __future__ import annotations

import math

import pytest
import torch
from wans import rand, tiny_vae, tiny_wan

from mmspec.draft.null import NullDrafter
from mmspec.draft.video.block_video import BlockVideoDrafter
from mmspec.engine.accept.routing import RandomRoutingRule, RewardThresholdRule, routed
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.laws import TargetError
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.errors import InputError
from mmspec.models.wan.clips import MOST_WAITING, WanClips
from mmspec.models.wan.sampler import FewStepSampler
from mmspec.models.wan.target import VideoTarget
from mmspec.models.wan.vae import decode_block, to_bytes
from mmspec.models.wan.window import ContextWindow
from mmspec.rewards.frames import FrameJudge

SIZE = (2, 4)
SAMPLERS = [
    FewStepSampler(steps=(1000, 500)),
    FewStepSampler(steps=(1000, 600, 200), guidance_scale=2.0),
]
ROLLING = ContextWindow(2, sink=1)
CLOSE = 1e-9


@pytest.fixture(scope="module")
def models():
    """Target, drafter and autoencoder of 3 channels, in double precision."""
    sizes = dict(in_dim=3, out_dim=3)
    return tiny_wan(**sizes), tiny_wan(**sizes, dim=24, num_layers=1), tiny_vae()


class Scripted:
    """Keeps the drafts that a script says, row by row."""

    contract, local = "lossy", True

    def __init__(self, *script: list[int]) -> None:
        self.script, self.round = script, 0

    def verify(self, draft, scores, coins):
        stands = torch.tensor(self.script[self.round], dtype=torch.bool)[:, None]
        self.round += 1
        return routed(draft, stands[:, : draft.nodes])


class Brightness:
    """Judges a frame by its mean."""

    name = "brightness"

    def score(self, prompts, images):
        assert images.dtype == torch.uint8
        return images.float().mean((1, 2, 3)) / 255


class Work:
    """A target, a drafter and what they emit."""

    def __init__(
        self, models, sampler=SAMPLERS[0], rows=(0, 1), window=ROLLING, reward=None, limit=12
    ):
        target, drafter, vae = models
        texts = [rand(1 + sampler.guided, 4, 10, seed=40 + row) for row in rows]
        made = [WanClips(m, texts, *SIZE, sampler, limit, window) for m in (target, drafter)]
        judge = reward and FrameJudge(reward, ["a"] * len(rows))
        self.target = VideoTarget(made[0], vae, judge)
        self.drafter = BlockVideoDrafter(made[1], made[0].steps)
        self.seeds, self.judge = [100 + row for row in rows], judge
        self.stats = SpecStats()
        self.blocks, self.frames, self.drafted, self.rewards = [], [], [], []

    def run(self, rule, blocks, drafts=True, forced=0, over=0):
        """Emits so many blocks of every clip; returns itself."""
        target, rows = self.target, len(self.seeds)
        coins = ProductionCoins(self.seeds, over=over)
        drafter = self.drafter if drafts else NullDrafter()
        engine = Engine(target, drafter, rule, ConstantLength(1, forced), coins)
        first = torch.zeros(rows, 1, *target.clips.shape, dtype=target.clips.dtype)

        def keep(context) -> bool:
            self.blocks.append(torch.stack([b.latents for b in target.emitted]))
            self.frames.append(torch.stack([b.frames for b in target.emitted]))
            self.drafted.append([b.drafted for b in target.emitted])
            self.rewards.append([b.rewards for b in target.emitted])
            return False

        run(engine, rows, blocks, self.stats, keep, first=first, window=1)
        return self

    @property
    def latents(self):
        """`[B, L, C, h, w]`."""
        return torch.cat(self.blocks, dim=1)

    @property
    def shown(self):
        return torch.cat(self.frames, dim=1)


def middle(models) -> float:
    """A threshold that some drafts reach."""
    every = Work(models, reward=Brightness()).run(RewardThresholdRule(-math.inf), 6)
    worst = [rewards.min() for block in every.rewards for rewards in block]
    return float(torch.stack(worst).median())


def same_cache(clips, row, latents, sampler, models_of, window):
    """Whether a clip's cache is the one of committing its blocks afresh."""
    clips.settle(row)
    texts = [rand(1 + sampler.guided, 4, 10, seed=40 + row)]
    fresh = WanClips(models_of, texts, *SIZE, sampler, 12, window)
    for block in latents.split(clips.shape[0]):
        fresh.join(0, block)
        fresh.settle(0)
    found, wanted = clips.snapshot(row), fresh.snapshot(0)
    assert torch.equal(found["blocks"], wanted["blocks"])
    assert len(found["waiting"]) == 0
    return torch.allclose(found["keys_values"], wanted["keys_values"], rtol=0, atol=CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("window", [ROLLING, ContextWindow()])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_caches_hold_what_was_emitted(models, sampler, window, seed):
    """After any verdicts: both caches, and the decoder, are those of the emitted blocks alone."""
    blocks = 9
    script = (torch.rand(blocks, 2, generator=torch.Generator().manual_seed(seed)) < 0.6).int()
    work = Work(models, sampler, window=window).run(Scripted(*script.tolist()), blocks)
    assert [[int(d) for d in row] for row in work.drafted] == script.tolist()
    for row in range(2):
        latents = work.latents[row]
        for clips, model in ((work.target.clips, models[0]), (work.drafter.clips, models[1])):
            assert clips.blocks(row) == blocks
            assert same_cache(clips, row, latents, sampler, model, window)
    whole, _ = decode_block(models[2], work.latents)
    assert whole.std() > 1e-3
    assert torch.allclose(work.shown, whole, rtol=0, atol=CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_thresholds_at_the_ends(models, sampler):
    """τ = inf is the plain loop, τ = -inf the drafter alone, to the last bit."""
    plain = Work(models, sampler).run(RewardThresholdRule(0), 6, drafts=False)
    none = Work(models, sampler, reward=Brightness()).run(RewardThresholdRule(math.inf), 6)
    assert torch.equal(none.latents, plain.latents)
    assert torch.equal(none.shown, plain.shown)
    assert not any(map(any, none.drafted))
    small = (models[1], models[0], models[2])
    alone = Work(small, sampler).run(RewardThresholdRule(0), 6, drafts=False)
    every = Work(models, sampler, reward=Brightness()).run(RewardThresholdRule(-math.inf), 6)
    assert torch.equal(every.latents, alone.latents)
    assert torch.equal(every.shown, alone.shown)
    assert all(map(all, every.drafted))
    assert not torch.allclose(every.latents, plain.latents, atol=1e-2)


@torch.no_grad()
def test_forced_block_is_the_targets(models):
    """And the drafter goes on from it."""
    plain = Work(models).run(RewardThresholdRule(0), 1, drafts=False)
    work = Work(models, reward=Brightness()).run(RewardThresholdRule(-math.inf), 4, forced=1)
    assert work.drafted == [[False] * 2] + [[True] * 2] * 3
    assert torch.equal(work.latents[:, :2], plain.latents)
    assert len(work.rewards[0][0]) == 0
    again = Work(models).run(Scripted([0, 0], *[[1, 1]] * 3), 4)
    assert torch.allclose(again.latents, work.latents, rtol=0, atol=CLOSE)


@torch.no_grad()
def test_reward_judges_the_drafted_frames(models):
    """The rewards are those of decoding what the drafter made behind what was emitted."""
    tau = middle(models)
    work = Work(models, reward=Brightness()).run(RewardThresholdRule(tau), 6)
    kept = torch.tensor(work.drafted)
    assert kept.any()
    assert not kept.all()
    start = 0
    for number, rewards in enumerate(work.rewards):
        width = work.frames[number].shape[1]
        for row in range(2):
            assert len(rewards[row]) == width
            assert (rewards[row].min() >= tau) == kept[number, row]
            if kept[number, row]:
                shown = to_bytes(work.shown[row, start : start + width])
                assert torch.equal(rewards[row], Brightness().score([], shown).double())
        start += width


@torch.no_grad()
def test_clip_alone_and_in_a_batch(models):
    tau = RewardThresholdRule(middle(models))
    both = Work(models, reward=Brightness()).run(tau, 5)
    assert {kept for row in both.drafted for kept in row} == {True, False}
    for row in range(2):
        alone = Work(models, rows=(row,), reward=Brightness()).run(tau, 5)
        assert torch.equal(alone.latents[0], both.latents[row])
        assert torch.equal(alone.shown[0], both.shown[row])


@torch.no_grad()
@pytest.mark.parametrize("cut", [1, 3, 5])
def test_resumed_clip_is_the_clip(models, cut):
    """Bit for bit, from a snapshot that has waited in between."""
    rule = RandomRoutingRule(0.7)
    whole = Work(models).run(rule, 7)
    begun = Work(models).run(rule, cut)
    kept = [(begun.target.snapshot(row), begun.drafter.clips.snapshot(row)) for row in range(2)]
    begun.run(rule, 1, over=cut)  # what goes on behind a snapshot does not change it
    resumed = Work(models)
    for row, (target, drafter) in enumerate(kept):
        resumed.target.restore(row, target)
        resumed.drafter.clips.restore(row, drafter)
    resumed.run(rule, 7 - cut, over=cut)
    assert torch.equal(resumed.latents, whole.latents[:, cut * 2 :])
    assert torch.equal(resumed.shown, torch.cat(whole.frames[cut:], dim=1))
    with pytest.raises(InputError, match="the snapshot lacks the decoder's state"):
        Work(models).target.restore(0, begun.target.clips.snapshot(0))
    with pytest.raises(InputError, match="the snapshot is of clips of another model"):
        Work(models).target.restore(0, kept[0][1])


@torch.no_grad()
def test_memory_is_flat(models):
    sizes = []
    for blocks in (5, 40):
        work = Work(models, limit=None).run(Scripted(*[[1, 1]] * blocks), blocks)
        sizes.append((work.target.nbytes, work.drafter.clips.nbytes))
        kept = work.target.snapshot(0)
        assert len(kept["waiting"]) == 2 * (blocks % MOST_WAITING)  # frames
    assert sizes[0] == sizes[1]
    tensors = [kept[name].nbytes for name in ("keys_values", "waiting")]
    assert tensors[0] < sizes[0][0]
    assert sum(t.nbytes for t in kept.values()) < 2 * sizes[0][0]


@torch.no_grad()
@pytest.mark.parametrize(("tokens", "most"), [(48, 16), (2048, 16), (4680, 7), (10_800, 4)])
def test_no_more_wait_than_one_call_reads(models, tokens, most):
    clips = Work(models).target.clips
    clips._caches[0].tokens = tokens
    assert clips.most_waiting == most


class Counted:
    """Forward passes of a model while it is watched: the clean blocks that each writes."""

    def __init__(self, model, patch) -> None:
        self.denoised, self.committed = [], []
        size, denoise, commit = model.config.num_frame_per_block, model.denoise, model.commit

        def watched(noisy, timestep, cache, clean=None):
            self.denoised.append(0 if clean is None else clean.shape[1] // size)
            return denoise(noisy, timestep, cache, clean)

        def written(clean, cache):
            self.committed.append(clean.shape[1] // size)
            return commit(clean, cache)

        patch.setattr(model, "denoise", watched)
        patch.setattr(model, "commit", written)

    @property
    def calls(self) -> int:
        return len(self.denoised) + len(self.committed)

    @property
    def blocks(self) -> int:
        """Read by all of them."""
        return len(self.denoised) + sum(self.denoised) + sum(self.committed)


@torch.no_grad()
@pytest.mark.parametrize("stand", [1, 5, MOST_WAITING - 2, MOST_WAITING - 1, 2 * MOST_WAITING])
def test_commit_takes_no_calls_of_its_own(models, monkeypatch, stand):
    """Blocks that stand are written by the next block's first step, however many, up to a bound."""
    steps, blocks = len(SAMPLERS[0].steps), stand + 2
    script = [[0], *[[1]] * stand, [0]]
    counted = Counted(models[0], monkeypatch)
    work = Work(models, rows=(0,), limit=blocks).run(Scripted(*script), blocks)
    settled = (stand + 1) // MOST_WAITING
    assert counted.committed == [MOST_WAITING] * settled
    assert [n for n in counted.denoised if n] == [(stand + 1) % MOST_WAITING] * (
        (stand + 1) % MOST_WAITING > 0
    )
    assert work.stats.calls == [counted.calls] == [2 * steps + settled]
    assert work.stats.target_tokens == [counted.blocks] == [2 * steps + stand + 1]


@torch.no_grad()
def test_blocks_that_wait_at_the_end_cost_nothing(models, monkeypatch):
    """A clip that ends with drafts: the target reads none of them."""
    steps, counted = len(SAMPLERS[0].steps), Counted(models[0], monkeypatch)
    Work(models, rows=(0,)).run(Scripted([0], *[[1]] * 9), 10)
    assert (counted.calls, counted.blocks) == (steps, steps)


@torch.no_grad()
@pytest.mark.parametrize("window", [ROLLING, ContextWindow(1), ContextWindow()])
def test_many_that_waited_are_written_as_one_by_one(models, window):
    """More than a window holds: some have fallen out of it when they are written."""
    blocks = MOST_WAITING + 3
    script = [[0], *[[1]] * (MOST_WAITING - 3), [0], *[[1]] * 4]
    work = Work(models, rows=(0,), window=window, limit=blocks).run(Scripted(*script), blocks)
    latents = work.latents[0]
    made = latents.split(2)[MOST_WAITING - 2]
    fresh = WanClips(models[0], [rand(1, 4, 10, seed=40)], *SIZE, SAMPLERS[0], blocks, window)
    for block in latents.split(2)[: MOST_WAITING - 2]:
        fresh.join(0, block)
        fresh.settle(0)
    coins = ProductionCoins(work.seeds, over=MOST_WAITING - 2).round(0)[0]
    again = fresh.make(0, fresh.noise(coins, fresh.steps)[0])
    assert torch.allclose(again, made, rtol=0, atol=CLOSE)
    for block in latents.split(2)[MOST_WAITING - 2 :]:
        fresh.join(0, block)
        fresh.settle(0)
    work.target.clips.settle(0)
    found, wanted = (clips.snapshot(0) for clips in (work.target.clips, fresh))
    assert torch.equal(found["blocks"], wanted["blocks"])
    assert torch.allclose(found["keys_values"], wanted["keys_values"], rtol=0, atol=CLOSE)


@torch.no_grad()
def test_calls_are_counted(models):
    """Of the target, by clip: the steps of what it makes again, and blocks that they write."""
    steps = len(SAMPLERS[0].steps)
    script = [[0, 0], *[[1, 0]] * 5, [0, 0]]
    work = Work(models).run(Scripted(*script), 7)
    assert work.stats.calls == [2 * steps, 7 * steps]
    assert work.stats.target_tokens == [2 * steps + 6, 7 * steps + 6]
    assert work.stats.emitted == [7, 7]
    assert work.stats.accepted == [5, 0]
    assert work.stats.drafted == [7, 7]


class Failing(Brightness):
    def __init__(self, how) -> None:
        self.how = how

    def score(self, prompts, images):
        if isinstance(self.how, Exception):
            raise self.how
        scores = super().score(prompts, images)
        scores[-1] = self.how
        return scores


@torch.no_grad()
@pytest.mark.parametrize("how", [math.nan, RuntimeError("no such kernel\nat line 3")])
def test_reward_that_fails_rejects_and_says_so(models, how, caplog):
    plain = Work(models).run(RewardThresholdRule(0), 3, drafts=False)
    work = Work(models, reward=Failing(how)).run(RewardThresholdRule(-math.inf), 3)
    assert torch.equal(work.latents, plain.latents)
    assert work.judge.failures == 6
    assert work.judge.reason == ("it is no number" if how is math.nan else "no such kernel")
    (record,) = caplog.records
    assert "reward brightness failed, and the block is rejected" in record.message


@torch.no_grad()
@pytest.mark.parametrize("rule", [RandomRoutingRule(1.0), RewardThresholdRule(-math.inf)])
def test_drafter_without_numbers_is_rejected(models, rule):
    broken = tiny_wan(in_dim=3, out_dim=3, dim=24, num_layers=1)
    torch.nn.init.constant_(broken.head.head.bias, math.nan)
    plain = Work(models).run(RewardThresholdRule(0), 2, drafts=False)
    reward = Brightness()
    work = Work((models[0], broken, models[2]), reward=reward).run(rule, 2)
    assert torch.equal(work.latents, plain.latents)
    with pytest.raises(TargetError, match="the target's block 0 of row 0 is no numbers"):
        Work((broken, *models[1:])).run(RewardThresholdRule(0), 2, drafts=False)
