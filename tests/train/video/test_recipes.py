"""The recipes of block video: their losses, what they learn from, and a folder end to end."""

from __future__ import annotations

import itertools
import json
import math
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import load_file
from torch import nn

from mmspec import SpecConfig, VideoPipeline
from mmspec.app.tabs import TABS
from mmspec.errors import InputError
from mmspec.models.loading import load_model
from mmspec.models.text_encoder import encode_prompt
from mmspec.models.wan.sampler import FewStepSampler, denoise_block
from mmspec.models.wan.transformer import TIMESTEPS, WanTransformer
from mmspec.models.wan.vae import decode_block, encode_block, posterior_block
from mmspec.rewards.router import RouterReward
from mmspec.train import base, recipes
from mmspec.train.caption_encoder import CaptionEncoderRecipe
from mmspec.train.feature_cache import cache_folder, write_cached
from mmspec.train.tokenizers import PREFIX, clip_tokenizer
from mmspec.train.trainer import TrainConfig
from mmspec.train.video import (
    advantage as video_advantage,
)
from mmspec.train.video import (
    autoencoder as video_autoencoder,
)
from mmspec.train.video import (
    model as video_model,
)
from mmspec.train.video import (
    router as video_router,
)
from mmspec.train.video.clip_latents import (
    ClipBatch,
    clip_batch,
    draw_cached,
    draw_clips,
    label_clips,
    latents_of,
)
from mmspec.train.video.watched import states_before_head
from mmspec.worlds.video_world.clip import render_clip, sample
from mmspec.worlds.video_world.patches import frame_labels
from mmspec.worlds.video_world.prompts import mirrored, sample_prompt, unseen
from mmspec.worlds.video_world.vocabulary import KINDS, TIMING

BLOCKS = 2


def shrink(patch: pytest.MonkeyPatch) -> None:
    """The recipes at sizes that train in seconds."""
    small = dict(dim=24, ffn_dim=32, num_heads=2, num_layers=2, freq_dim=16)
    sizes = {name: {**size, **small} for name, size in video_model.SIZES.items()}
    patch.setattr(video_model, "SIZES", sizes)
    for size in sizes.values():
        size["sample_frames"] = BLOCKS * TIMING.latents
    patch.setattr(video_model, "BLOCKS", BLOCKS)
    patch.setattr(video_model, "FRAMES", TIMING.frames(BLOCKS))
    patch.setattr(video_model, "PARTS", (1, 2))
    patch.setattr(video_model, "TURNS_LATE", (0,))
    patch.setattr(video_model, "TURNS_DRAFTED", (0,))
    patch.setattr(video_model, "ROLLOUTS", 2)
    for recipe in (video_router.VideoRouterRecipe, video_advantage.VideoAdvantageRecipe):
        patch.setattr(recipe, "sizes", {**recipe.sizes, "widths": (8, 8)})
    patch.setattr(video_router, "BLOCKS", BLOCKS + 1)
    patch.setattr(video_router, "JUDGED", 3)
    patch.setattr(
        video_autoencoder,
        "EMBEDDED",
        {**video_autoencoder.EMBEDDED, "base_dim": 4, "decoder_base_dim": 4},
    )


@pytest.fixture
def tiny(monkeypatch):
    shrink(monkeypatch)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A pipeline folder that both recipes have gone through, two steps a stage."""
    folder = tmp_path_factory.mktemp("runs") / "video"
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        shrink(patch)
        records = recipes.train("video-autoencoder", folder, steps=2, batch_size=1)
        records += recipes.train("video", folder, steps=2, batch_size=2)
    return folder, records


STAGES = ("vae", "text_encoder", "transformer", "drafter", "router", "advantage_router")


@pytest.mark.slow
def test_trained_folder_draws(trained):
    pipe = VideoPipeline.from_pretrained(trained[0])
    pipe.set_progress_bar_config(disable=True)
    pipe.enable_speculation(SpecConfig("sdvg", tau=-math.inf))
    call = dict(prompt="a red circle moves right")
    out = pipe(**call, generator=torch.Generator().manual_seed(0))
    (frames,) = out.frames
    assert len(frames) == TIMING.frames(BLOCKS)
    assert {frame.size for frame in frames} == {(64, 64)}
    assert out.made_by == [["target", "drafter"]]
    for tau, maker in ((1.0, "drafter"), (0.0, "target")):
        pipe.enable_speculation(SpecConfig("arbitrage", advantage_tau=tau))
        assert pipe(**call).made_by == [["target", maker]]


def test_trained_folder_is_shippable(trained):
    folder, records = trained
    assert [record["step"] for record in records] == [2] * len(STAGES)
    index = json.loads((folder / "model_index.json").read_text())
    assert index["_class_name"] == "VideoPipeline"
    assert {*index} == {"_class_name", *STAGES, "text_encoder", "tokenizer"}
    for part, record in zip(STAGES, records, strict=True):
        card = (folder / part / "README.md").read_text()
        saved = json.loads((folder / part / "training.json").read_text())
        assert saved["held_out"] == record["held_out"]
        assert all(np.isfinite(value) for value in record["held_out"].values())
        assert "Not good for" in card
        assert "clips of moving shapes" in card
        (weights,) = (folder / part).glob("*.safetensors")
        assert {value.dtype for value in load_file(weights).values()} == {torch.float16}
    assert 0 <= records[2]["held_out"]["held_out_score"] <= 1


@pytest.mark.slow
def test_latents_are_brought_to_unit_deviation(trained):
    vae = load_model(AutoencoderKLWan, trained[0] / "vae")
    frames = clip_batch(np.random.default_rng(5), 60, 21, 64, "held_out", 100)[1]
    with torch.no_grad():
        latents, _ = encode_block(vae, frames)
        law, _ = posterior_block(vae, frames)
    assert latents.shape == (60, 6, 16, 8, 8)
    of_mean, chance = latents.var((0, 1, 3, 4)), law.var.mean((0, 2, 3, 4))
    scale = torch.tensor(vae.config.latents_std)
    assert torch.allclose(latents.mean((0, 1, 3, 4)), torch.zeros(16), atol=0.1)
    assert torch.allclose(of_mean + chance / scale**2, torch.ones(16), atol=0.1)


def test_autoencoders_see_pictures_short_clips_and_long_ones_in_turn():
    rng = np.random.default_rng(0)
    shapes = [
        video_autoencoder.VideoAutoencoderRecipe.draw_step(3, rng, step)[1].shape[:2]
        for step in range(12)
    ]
    assert shapes == [(63, 1), (3, 21), (12, 5)] * 3 + [(63, 1), (1, 97), (63, 1)]


def test_gradients_reach_pixels_out_of_range(trained):
    vae = load_model(AutoencoderKLWan, trained[0] / "vae")
    with torch.no_grad():
        vae.decoder.conv_out.bias.fill_(50.0)  # every pixel is far too bright
    latents = torch.randn(1, 1, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    for clamp in (True, False):
        given = latents.clone().requires_grad_()
        frames, _ = decode_block(vae, given, clamp=clamp)
        frames.square().sum().backward()
        assert bool((frames > 1).all()) != clamp
        assert bool(given.grad.any()) != clamp


@pytest.mark.parametrize("name", STAGES)
def test_gradient_reaches_every_weight(trained, tiny, tmp_path, name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = TrainConfig(tmp_path, 100, 2)
        if name == "vae":
            recipe = video_autoencoder.VideoAutoencoderRecipe(config, trained[0])
        elif name == "text_encoder":
            recipe = CaptionEncoderRecipe(config, trained[0], "clips")
        elif name == "router":
            recipe = video_router.VideoRouterRecipe(config, trained[0])
        elif name == "advantage_router":
            recipe = video_advantage.VideoAdvantageRecipe(config, trained[0])
        else:
            recipe = video_model.VideoModelRecipe(config, trained[0], name)
            # zero at first, which hides what is behind
            nn.init.normal_(recipe.model.transformer.head.head.weight, std=0.1)
    rng, step = np.random.default_rng(5), int(name == "vae")  # at first the VAE sees pictures alone
    loss, _ = recipe.loss(recipe.draw(rng, step), rng, step)
    loss.backward()
    moved = [p for o in recipe.optimizers() for group in o.param_groups for p in group["params"]]
    wanted = {key: p for key, p in recipe.model.named_parameters() if p.requires_grad}
    assert {id(p) for p in moved} == {id(p) for p in wanted.values()}
    for key, weight in wanted.items():
        assert weight.grad is not None, key
    frozen = {
        key.split(".")[0] for key, p in recipe.model.named_parameters() if not p.requires_grad
    }
    assert frozen == ({"text_encoder"} if name in ("transformer", "drafter") else set())


def test_a_run_with_another_seed_is_judged_by_the_same_clips(trained, tiny, tmp_path):
    """Or a figure that is better may be easier clips."""
    figures = []
    for seed in (0, 95):
        config = TrainConfig(tmp_path, 100, 2, seed=seed)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            recipe = video_model.VideoModelRecipe(config, trained[0], init="transformer")
        figures.append(recipe.evaluate(recipe.model))
    assert figures[0] == pytest.approx(figures[1])


def drawn_captions(*asked, **named):
    return [prompt.prompt for prompt in video_router.draw_prompts(*asked, **named)]


def by_hand(recipe, captions, seed):
    """Slowly, what a router is taught: clip by clip, blocks committed one by one, decoded anew."""
    rng, vae = np.random.default_rng(seed), recipe.vae
    rows, blocks, size = len(captions), BLOCKS + 1, TIMING.latents
    config = recipe.makers[1].config
    shares = rng.random(rows)
    shape = (config.sample_steps, rows, size, config.in_dim, config.sample_height)
    shape += (config.sample_width,)
    clips = [torch.zeros(1, 0, *shape[3:]) for _ in captions]
    caches = []
    for caption in captions:
        both = [encode_prompt(recipe.tokenizer, recipe.encoder, c, PREFIX) for c in (caption, "")]
        text = nn.utils.rnn.pad_sequence(both, batch_first=True)
        rows_of = [1 + FewStepSampler.usual(m).guided for m in recipe.makers]
        assert rows_of == [1, 2]  # the drafter's, and the target's under guidance
        caches.append(
            [
                m.start(text[:own], *shape[4:], blocks)
                for m, own in zip(recipe.makers, rows_of, strict=True)
            ]
        )
    for number in range(blocks):
        noise = torch.from_numpy(rng.standard_normal(shape)).float()
        coins, shown = rng.random(rows), []
        for row, clip in enumerate(clips):
            own = noise[:, row : row + 1]
            pair = [
                denoise_block(m, cache, own[0], FewStepSampler.usual(m), own.__getitem__)
                for m, cache in zip(recipe.makers, caches[row], strict=True)
            ]
            both = [decode_block(vae, torch.cat([clip, block], 1))[0][0] for block in pair]
            start = both[0].shape[0] - (TIMING.frames(1) if not number else size * TIMING.factor)
            before = both[0][start - 1] if number else torch.zeros(3, 64, 64)
            drafted, wanted = (frames[start:] for frames in both)
            error = (drafted - wanted).square().mean((1, 2, 3))
            shown.append((before, drafted, 10 * torch.log10(4 / error)))
            likely = shares[row] if number else video_router.FIRST * shares[row]
            stands = bool(coins[row] < likely)
            clips[row] = torch.cat([clip, pair[1 - stands]], dim=1)
            for m, cache in zip(recipe.makers, caches[row], strict=True):
                m.commit(pair[1 - stands].repeat(cache.rows, 1, 1, 1, 1), cache)
        yield [torch.stack(of) for of in zip(*shown, strict=True)]


@torch.no_grad()
def test_a_router_learns_from_clips_as_they_are_made(trained, tiny, tmp_path):
    """Drafts behind blocks of both models, the frame before them, and what they are worth."""
    recipe = video_router.VideoRouterRecipe(TrainConfig(tmp_path, 4, 2), trained[0])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nn.init.normal_(recipe.makers[0].head.head.weight, std=0.1)
    prompts = video_router.draw_prompts(2, np.random.default_rng(0))
    captions = [prompt.prompt for prompt in prompts]
    found = list(recipe.drafts(prompts, np.random.default_rng(2)))
    assert [block.number for block in found] == [0, 1, 2]
    for block, (before, drafted, decibels) in zip(found, by_hand(recipe, captions, 2), strict=True):
        for bytes_, pixels in ((block.before, before), (block.frames, drafted)):
            assert torch.allclose(bytes_ / 127.5 - 1, pixels, atol=0.51 / 127.5 + 1e-4)
        wanted = decibels.clamp(video_router.LEAST, video_router.MOST)
        assert torch.allclose(block.worth, wanted, atol=0.01)
    assert float(found[1].worth.mean()) < video_router.MOST - 5


def test_a_target_that_is_its_drafter_is_not_told_apart(trained, tiny, tmp_path):
    recipe = video_router.VideoRouterRecipe(TrainConfig(tmp_path, 4, 2), trained[0])
    prompts = video_router.draw_prompts(2, np.random.default_rng(0))
    recipe.makers[1] = recipe.makers[0]
    for block in recipe.drafts(prompts, np.random.default_rng(1)):
        assert torch.equal(block.worth, torch.full_like(block.worth, video_router.MOST))


def test_a_router_is_asked_as_in_use(trained, tiny, tmp_path):
    """What it guesses in training is what the reward gives of the same block."""
    recipe = video_router.VideoRouterRecipe(TrainConfig(tmp_path, 4, 2), trained[0])
    prompts = video_router.draw_prompts(2, np.random.default_rng(0))
    captions = [prompt.prompt for prompt in prompts]
    drafts = list(recipe.drafts(prompts, np.random.default_rng(1)))
    model = recipe.model.eval()
    reward = RouterReward(model, recipe.tokenizer)
    with torch.no_grad():
        guesses = recipe._guess(model, captions, drafts)
    for block, guess in zip(drafts, guesses, strict=True):
        for row, caption in enumerate(captions):
            before = block.before[row] if block.number else None
            found = reward.score_block(caption, block.frames[row], before, block.number)
            assert torch.allclose(found, guess[row], atol=1e-3)


@pytest.mark.slow
def test_drafts_are_kept_and_come_again(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(video_router, "KEPT", 2)
    recipe = video_router.VideoRouterRecipe(TrainConfig(tmp_path, 4, 2), trained[0])
    recipe.draw = partial(video_router.draw_cached_drafts, tmp_path / "drafts", 0, 2)
    rng = np.random.default_rng(0)
    first, other = recipe.draw(rng, 0), recipe.draw(rng, 1)
    assert first.drafts is other.drafts is None
    recipe.model.eval()
    losses = [float(recipe.loss(batch, rng, 0)[0].detach()) for batch in (first, other)]
    assert losses[0] != losses[1]
    monkeypatch.setattr(recipe, "makers", [])  # nothing is made
    monkeypatch.setattr(video_router, "unseen", lambda include: True)  # so none in a mirror
    for step, batch, loss in ((2, first, losses[0]), (3, other, losses[1])):
        again = recipe.draw(rng, step)
        assert again.prompts == batch.prompts
        assert float(recipe.loss(again, rng, step)[0].detach()) == loss
    first.file.write_bytes(first.file.read_bytes()[:100])  # cut short
    assert recipe.draw(rng, 0).drafts is None


@torch.no_grad()
def test_half_of_the_kept_clips_come_in_a_mirror(tmp_path):
    """But for what training would show only so: left and right of a held-out pass."""
    draw = partial(video_router.draw_cached_drafts, tmp_path, 0, len(KINDS))
    turned, barred = [], 0
    for step in range(20):
        first = draw(np.random.default_rng(step), step)
        pictures = torch.randint(256, (len(KINDS), 3, 8, 8), dtype=torch.uint8)
        kept = [(pictures, pictures[:, None], torch.arange(float(len(KINDS)))[:, None])]
        write_cached(first.file, kept)
        again = draw(np.random.default_rng(step), step)
        (block,) = again.drafts
        assert torch.equal(block.worth, kept[0][2])
        assert torch.equal(block.before, block.frames[:, 0])
        for row, (old, new) in enumerate(zip(first.prompts, again.prompts, strict=True)):
            turn = torch.equal(block.before[row], pictures[row].flip(-1))
            assert turn or torch.equal(block.before[row], pictures[row])
            assert new == (mirrored(old) if turn else old)
            assert not unseen(new.include)
            if unseen(mirrored(old).include):
                barred += 1
            else:
                turned.append(turn)
    assert 0.35 < np.mean(turned) < 0.65
    assert 0 < barred < len(turned) / 4


def test_captions_of_a_step_take_turns():
    captions = drawn_captions(2 * len(KINDS), np.random.default_rng(3))
    assert len(captions) == 2 * len(KINDS)
    assert len(set(captions)) > len(KINDS)
    starts = [drawn_captions(1, np.random.default_rng(n))[0] for n in range(30)]
    assert len({caption.split()[2:4][-1] for caption in starts}) > 3
    one, other = (
        drawn_captions(40, np.random.default_rng(0), split=split) for split in ("train", "held_out")
    )
    assert not set(one) & set(other)


def test_steps_are_of_whole_clips_and_beginnings(tmp_path):
    """Late ones take batches that early ones kept, if there were as many."""
    rng, files = np.random.default_rng(0), []

    def draw(step: int, late: float, turns: tuple[int, ...] = (5, 0, 2)) -> ClipBatch:
        return video_model.draw_whole_or_begun(tmp_path, 0, 1, turns, late, rng, step)

    early = [(12, 1), (12, 1), (4, 3), (12, 1), (12, 1), (1, 12)]
    for step, (clips, blocks) in enumerate([*early, (1, 12), (12, 1), (4, 3)]):
        batch = draw(step, 6)
        assert len(set(batch.captions)) == clips
        assert batch.frames.shape == (clips, TIMING.frames(blocks), 3, 64, 64)
        files.append(batch.file.name.rsplit("-", 1)[0])
    for step in (600, 601, 602):
        late = draw(step, 600)
        number = int(late.file.stem.rsplit("-", 1)[1])
        assert late.file.name.rsplit("-", 1)[0] == files[number % 6] == files[6 + step % 3]
    assert draw(4, 10**6).file == draw(4 + video_model.KEPT, 10**6).file
    drafted = [draw(step, 0, video_model.TURNS_DRAFTED).file for step in range(4)]
    assert [file.name.rsplit("-", 1)[0] for file in drafted] == [files[6], files[8]] * 2
    assert len(set(drafted)) == 4


def test_a_drafter_begins_as_the_target(trained, tiny, tmp_path, monkeypatch):
    recipe = video_model.VideoModelRecipe(TrainConfig(tmp_path, 4, 2), trained[0], "drafter")
    target = recipe.teacher.state_dict()
    begun = recipe.model.transformer.state_dict()
    assert {*begun} == {*target}
    assert all(torch.equal(value, target[name]) for name, value in begun.items())
    assert recipe.model.transformer is not recipe.teacher
    monkeypatch.setitem(video_model.SIZES["drafter"], "ffn_dim", 48)
    with pytest.raises(InputError, match=r"blocks\.0\.ffn\.0\.weight has shape"):
        video_model.VideoModelRecipe(TrainConfig(tmp_path, 4, 2), trained[0], "drafter")


@pytest.mark.parametrize(
    ("name", "numbers", "reads"), [("transformer", [0, 1], 0), ("drafter", [1, 3], 1)]
)
def test_a_drafter_goes_on_from_its_own_blocks_from_the_first_step(
    trained, tiny, tmp_path, monkeypatch, name, numbers, reads
):
    """And draws clips of its own turns; a target does neither before it is late."""
    monkeypatch.setattr(video_model, "TURNS_DRAFTED", (1,))
    recipe = video_model.VideoModelRecipe(TrainConfig(tmp_path, 100, 2), trained[0], name)
    batch, drawn, chosen = recipe.draw(np.random.default_rng(0), 0), [], []
    monkeypatch.setattr(video_model, "draw_cached", lambda *given: drawn.append(given[2]))
    for step in (0, 1):
        recipe.draw(np.random.default_rng(0), step)
    assert drawn == numbers

    def error(*_, own, begun):
        assert not begun  # clips of more than a block
        chosen.append(own)
        return torch.zeros(2, BLOCKS * TIMING.latents)

    monkeypatch.setattr(recipe, "_error", error)
    if name == "transformer":  # nothing is read where no transformer runs
        monkeypatch.setattr(video_model, "states_before_head", lambda _: nullcontext([None]))
        monkeypatch.setattr(recipe.model, "shown", lambda *_: torch.zeros(()))
    for seed in range(40):
        recipe.loss(batch, np.random.default_rng(seed), 0)
    assert 10 * reads <= sum(chosen) <= 30 * reads


@pytest.mark.parametrize(
    ("name", "late", "share"),
    [("transformer", 100, video_model.FROM_CAPTION), ("transformer", 0, 0), ("drafter", 100, 0)],
)
def test_early_first_blocks_of_a_target_begin_from_the_caption_alone(
    trained, tiny, tmp_path, monkeypatch, name, late, share
):
    monkeypatch.setattr(video_model, "PARTS", (2, 2))  # first blocks alone
    recipe = video_model.VideoModelRecipe(TrainConfig(tmp_path, 100, 2), trained[0], name)
    monkeypatch.setattr(recipe, "late", late)
    batch, chosen = recipe.draw(np.random.default_rng(0), 0), []
    real = recipe._error

    def error(*given, begun, **others):
        chosen.append(begun)
        return real(*given, begun=begun, **others)

    monkeypatch.setattr(recipe, "_error", error)
    noisy = []
    recipe.model.transformer.register_forward_pre_hook(lambda _, given: noisy.append(given[1]))
    for seed in range(40):
        recipe.loss(batch, np.random.default_rng(seed), 0)
    assert 40 * share - 12 * bool(share) <= sum(chosen) <= 40 * share + 12 * bool(share)
    for begun, times in zip(chosen, noisy, strict=True):
        assert not begun or bool((times == TIMESTEPS).all())


def test_a_target_that_goes_on_first_learns_to_read_captions(trained, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(base, "SETTLE", 2)
    recipe = video_model.VideoModelRecipe(
        TrainConfig(tmp_path, 100, 2), trained[0], init="transformer"
    )
    network = recipe.model.transformer
    learns = []
    for step in range(3):
        network.zero_grad()
        rng = np.random.default_rng(0)
        loss, _ = recipe.loss(recipe.draw(rng, step), rng, step)
        loss.backward()
        learns.append({n for n, w in network.named_parameters() if w.grad is not None})
    told = {n for n in learns[2] if "cross_attn" in n or "text_embedding" in n}
    assert learns[0] == learns[1] == told
    assert any("self_attn" in n for n in learns[2])


def test_captions_together_are_what_they_are_alone(trained, tiny, tmp_path):
    """As the pipeline encodes them: one by one, without padding."""
    recipe = video_model.VideoModelRecipe(TrainConfig(tmp_path, 4, 2), trained[0])
    captions = ["a red circle", "a blue square stands still behind a green heart", ""]
    with torch.no_grad():
        together, none = recipe._features(recipe.model.eval(), captions)
        assert torch.allclose(none, together[2:].expand_as(together), atol=1e-5)
        for row, caption in zip(together, captions, strict=True):
            alone = encode_prompt(recipe.tokenizer, recipe.model.text_encoder, caption, PREFIX)
            assert torch.allclose(row[: len(alone)], alone, atol=1e-5)
            assert not row[len(alone) :].any()


def test_a_perfect_model_has_no_error(trained, tiny, tmp_path, monkeypatch):
    """What the network is asked for is the velocity of the noisy frames that it is given."""
    recipe = video_model.VideoModelRecipe(TrainConfig(tmp_path, 4, 2), trained[0])
    rng = np.random.default_rng(3)
    batch = recipe.draw(rng, 0)
    truth = latents_of(recipe.vae, batch, "cpu")
    seen = {}

    def velocity(noisy, timesteps, text, clean):
        sigma = timesteps[:, :, None, None, None] / 1000
        seen.update(times=timesteps, text=text, off=(clean - truth).abs().amax())
        return (noisy - truth) / sigma  # x = (1 - σ) x0 + σ noise

    monkeypatch.setattr(recipe.model.transformer, "forward", velocity)
    with torch.no_grad():
        error = recipe._error(recipe.model, [batch.captions[0], ""], truth, rng, None)
    assert error.shape == (2, 3 * BLOCKS)
    assert float(error.max()) < 1e-4
    blocks = seen["times"].view(2, BLOCKS, 3)
    assert torch.equal(blocks, blocks[:, :, :1].expand(-1, -1, 3))
    assert len(blocks[:, :, 0].unique()) == 2 * BLOCKS
    assert 0 < float(seen["off"]) < 1
    with torch.no_grad():
        (nothing,), _ = recipe._features(recipe.model, [""])
    assert torch.allclose(seen["text"][1, :1], nothing, atol=1e-5)
    assert not seen["text"][1, 1:].any()
    assert not torch.equal(seen["text"][0, :1], nothing)


def test_late_in_training_blocks_read_the_models_own(trained, tiny, tmp_path, monkeypatch):
    """A network that knows its clip makes the clip itself of it; one that says nothing, noise.

    The first block is the clip's own.
    """
    recipe = video_model.VideoModelRecipe(TrainConfig(tmp_path, 4, 2), trained[0])
    truth = torch.randn(2, 6, 16, 8, 8)
    for knows in (True, False):
        read = []

        def velocity(noisy, timesteps, text, clean, knows=knows, read=read):
            read.append(clean)
            assert read[1:] or timesteps.max() <= 700
            sigma = timesteps[:, :, None, None, None] / 1000
            return (noisy - truth) / sigma if knows else torch.zeros_like(noisy)

        monkeypatch.setattr(recipe.model.transformer, "forward", velocity)
        captions = ["a red circle moves right"] * 2
        recipe._error(recipe.model, captions, truth, np.random.default_rng(0), None, own=True)
        before, own = read
        assert (before - truth).abs().max() > 0.01
        assert torch.equal(own[:, :3], before[:, :3])
        assert bool(torch.allclose(own[:, 3:], truth[:, 3:], atol=1e-4)) == knows


@pytest.mark.parametrize("guidance", [1.0, 2.0])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_drafter_learns_where_four_steps_of_the_target_lead(
    trained, tiny, tmp_path, monkeypatch, guidance, steps
):
    """Its steps, if it has learned all, end where as many times four of the target's do, without
    guidance.
    """
    monkeypatch.setitem(video_model.SIZES["drafter"], "sample_steps", steps)
    recipe = video_model.VideoModelRecipe(TrainConfig(tmp_path, 4, 2), trained[0], "drafter")
    teacher = recipe.teacher
    teacher.register_to_config(sample_guidance=guidance)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.nn.init.normal_(teacher.head.head.weight, std=0.3)
        noise = torch.randn(1, 3, 16, 8, 8)
    with torch.no_grad():
        told, untold = recipe._features(recipe.model, ["a red circle moves right"])
        sampler = FewStepSampler.even(4 * steps, video_model.SHIFT, guidance, 0.0)
        text = torch.cat([told, untold]) if guidance > 1 else told
        cache = teacher.start(text, 8, 8, BLOCKS)
        wanted = denoise_block(teacher, cache, noise, sampler, lambda step: noise)
        own = FewStepSampler.usual(recipe.model.transformer)
        x, sigmas = noise, [*own.sigmas, 0.0]
        assert (len(own.steps), own.guided) == (steps, False)
        for step, (before, after) in enumerate(itertools.pairwise(sigmas)):
            parts = torch.full((1, 3), own.steps[step] / 1000)
            velocity = recipe._taught(teacher, x, parts, told, untold, None)
            x = x + (after - before) * velocity
    assert (wanted - noise).abs().max() > 0.1
    assert torch.allclose(x, wanted, atol=1e-4)


@torch.no_grad()
def test_a_drafter_is_judged_behind_the_targets_first_block(trained, tiny, tmp_path):
    config, words = TrainConfig(tmp_path, 4, 2), ["a red circle moves right"]
    recipe = video_model.VideoModelRecipe(config, trained[0], "drafter")
    own = video_model.VideoModelRecipe(config, trained[0])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.nn.init.normal_(recipe.teacher.head.head.weight, std=0.3)
    own.model.transformer.load_state_dict(recipe.teacher.state_dict())
    mixed, alone = (each._clips(each.model, words)[0] for each in (recipe, own))
    first = TIMING.frames(1)
    assert np.array_equal(mixed[:first], alone[:first])
    assert not np.array_equal(mixed[first:], alone[first:])


def test_a_drafter_s_loss_is_what_it_lacks_of_that(trained, tiny, tmp_path, monkeypatch):
    """From the first step on; a first block, which is the target's own, counts a tenth."""
    recipe = video_model.VideoModelRecipe(TrainConfig(tmp_path, 4, 2), trained[0], "drafter")
    batch = recipe.draw(np.random.default_rng(3), 0)
    before, _ = recipe.loss(batch, np.random.default_rng(4), 0)
    assert float(before.detach()) > 0
    own = FewStepSampler.usual(recipe.model.transformer)
    taught, asked, off = recipe._taught, [], torch.zeros(2, BLOCKS * TIMING.latents, 1, 1, 1)

    def kept(teacher, noisy, parts, *told):
        assert {round(1000 * part) for part in parts.unique().tolist()} <= {*own.steps}
        asked.append(taught(teacher, noisy, parts, *told))
        return asked[-1]

    monkeypatch.setattr(recipe, "_taught", kept)
    monkeypatch.setattr(recipe.model.transformer, "forward", lambda *given: asked[-1] + off)
    assert float(recipe.loss(batch, np.random.default_rng(4), 0)[0]) == 0
    losses = []
    for block in range(BLOCKS):
        off.zero_()
        off[:, block * TIMING.latents : (block + 1) * TIMING.latents] = 1.0
        losses.append(float(recipe.loss(batch, np.random.default_rng(4), 0)[0]))
    assert losses == pytest.approx([0.1 / BLOCKS, 1 / BLOCKS], rel=1e-4)


@torch.no_grad()
def test_latents_are_kept_and_come_again(trained, tmp_path, monkeypatch):
    vae = load_model(AutoencoderKLWan, trained[0] / "vae")
    asked = dict(seed=3, number=1, size=2, frames=9, resolution=64, patches=4)
    first = draw_cached(tmp_path / "latents", **asked)
    made = latents_of(vae, first, "cpu")
    assert torch.equal(made, encode_block(vae, first.frames)[0])
    monkeypatch.setattr("mmspec.train.video.clip_latents.draw_clips", None)  # nothing is rendered
    again = draw_cached(tmp_path / "latents", **asked)
    assert (again.captions, again.frames) == (first.captions, None)
    assert torch.allclose(latents_of(None, again, "cpu"), made, atol=1e-2)
    assert torch.equal(again.labels, first.labels)
    monkeypatch.undo()
    other = draw_cached(tmp_path / "latents", **{**asked, "number": 2})
    assert other.captions != first.captions
    again.file.write_bytes(again.file.read_bytes()[:100])  # cut short
    assert torch.equal(draw_cached(tmp_path / "latents", **asked).frames, first.frames)


def test_labels_are_of_the_middle_of_what_a_latent_frame_holds():
    drawn = draw_clips(np.random.default_rng(3), len(KINDS), 9)
    labels = label_clips(drawn, 64, 4)
    for row, (_, clip, _) in zip(labels, drawn, strict=True):
        for own, frame in zip(row, (0, 2, 6), strict=True):  # of 0, of 1 to 4, of 5 to 8
            assert np.array_equal(own.view(4, 4, 3), frame_labels(clip, frame, 4, 16))


def test_states_stand_where_their_patches_do(trained, tiny, tmp_path):
    """What is changed in a patch of a frame changes that patch's own state most."""
    recipe = video_model.VideoModelRecipe(TrainConfig(tmp_path, 4, 1), trained[0])
    network = recipe.model.transformer.eval()
    told, _ = recipe._features(recipe.model, ["a red circle"])
    plain = torch.randn(1, 3, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    times = torch.full((1, 3), 500.0)
    for frame, row, column in ((0, 0, 3), (1, 2, 1), (2, 3, 0)):
        other = plain.clone()
        other[:, frame, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] += 5.0
        with torch.no_grad(), states_before_head(network) as states:
            network(plain, times, told)
            network(other, times, told)
        change = (states[1] - states[0]).square().sum(-1)[0]
        assert change.shape == (3, video_model.PATCHES**2)
        assert divmod(int(change.argmax()), 16) == (frame, 4 * row + column)


def test_latents_of_another_autoencoder_are_not_taken(tmp_path):
    positions = set()
    for text in ("one", "other"):
        (tmp_path / "vae").mkdir(exist_ok=True)
        (tmp_path / "vae" / "weights.safetensors").write_text(text)
        positions.add(cache_folder(tmp_path, "latents", ["vae"]))
    assert len(positions) == 2


def test_the_drafter_needs_the_targets_caption_encoder(trained, tiny, tmp_path):
    folder, _ = trained
    recipe = video_model.VideoModelRecipe(TrainConfig(tmp_path, 4, 2), folder, "drafter")
    stored = load_file(folder / "text_encoder" / "model.safetensors")
    mine = recipe.model.text_encoder.state_dict()
    assert all(torch.equal(mine[name], value.float()) for name, value in stored.items())
    (tmp_path / "vae").symlink_to(folder / "vae")
    with pytest.raises(InputError, match="no text_encoder; train it first"):
        video_model.VideoModelRecipe(TrainConfig(tmp_path, 4, 2), tmp_path, "drafter")


def test_autoencoders_of_another_size_are_refused(tiny, tmp_path):
    with torch.random.fork_rng():
        small = AutoencoderKLWan(**{**video_autoencoder.EMBEDDED, "z_dim": 8})
    small.register_to_config(latents_mean=[0.0] * 8, latents_std=[1.0] * 8)
    small.save_pretrained(tmp_path / "vae")
    with pytest.raises(InputError, match="an autoencoder of 8 channels"):
        video_model.VideoModelRecipe(TrainConfig(tmp_path, 4, 2), tmp_path)


def test_further_training_starts_from_the_component(trained, tiny, tmp_path):
    folder, _ = trained
    again = video_model.VideoModelRecipe(
        TrainConfig(tmp_path, 4, 2), folder, "drafter", init="drafter"
    )
    stored = load_file(folder / "drafter" / "diffusion_pytorch_model.safetensors")
    for name, value in again.model.transformer.state_dict().items():
        assert torch.equal(value, stored[name].float())
    assert again.origin == folder / "drafter"


def test_every_word_of_the_captions_is_known():
    words, rng = clip_tokenizer(), np.random.default_rng(0)
    for kind in KINDS:
        for split in ("train", "held_out"):
            for _ in range(40):
                prompt = sample_prompt(rng, kind, split).prompt
                ids = words(prompt)["input_ids"]
                assert words.unk_token_id not in ids
                assert len(ids) <= words.model_max_length
                assert words(prompt.capitalize())["input_ids"] == ids
    tab = next(tab for tab in TABS if tab.modality == "video")
    for example in tab.examples:
        assert words.unk_token_id not in words(example)["input_ids"]


def test_batches_are_the_worlds_clips():
    captions, pixels = clip_batch(np.random.default_rng(4), len(KINDS), 3, 32)
    rng = np.random.default_rng(4)
    turn = int(rng.integers(len(KINDS)))
    for n, caption in enumerate(captions):
        prompt, clip = sample(rng, KINDS[(turn + n) % len(KINDS)], "train")
        frames = torch.from_numpy(render_clip(clip, 3, 32)).permute(0, 3, 1, 2)
        assert caption == prompt.prompt
        assert torch.equal(((pixels[n] + 1) * 127.5).round().to(torch.uint8), frames)


def test_the_drafter_costs_a_sixth_at_most():
    """Weights that a block is multiplied with, in all rows of all steps."""

    def work(name):
        with torch.device("meta"):
            model = WanTransformer(**video_model.SIZES[name])
        sampler = FewStepSampler.usual(model)
        weights = sum(p.numel() for p in model.blocks.parameters())
        return weights * len(sampler.steps) * (1 + sampler.guided)

    assert work("drafter") <= work("transformer") / 6
