"""The recipes of block video: their losses, what they learn from, and a folder end to end."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import load_file
from torch import nn

from mmspec import SpecConfig, VideoPipeline
from mmspec.errors import InputError
from mmspec.models.loading import load_model
from mmspec.models.wan import WanTransformer
from mmspec.models.wan_vae import decode_block, encode_block
from mmspec.train import recipes, video_autoencoder, video_model
from mmspec.train.clips import clip_batch
from mmspec.train.trainer import TrainConfig
from mmspec.train.words import clip_tokenizer
from mmspec.worlds.clips import KINDS, render_clip, sample, sample_prompt
from mmspec.worlds.clips.timing import TIMING

BLOCKS = 2


def shrink(patch: pytest.MonkeyPatch) -> None:
    """The recipes at sizes that train in seconds."""
    encoder = dict(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    small = dict(dim=24, ffn_dim=32, num_heads=2, num_layers=2, freq_dim=16, text_dim=16)
    sizes = {name: {**size, **small} for name, size in video_model.SIZES.items()}
    sizes["drafter"]["num_layers"] = 1
    patch.setattr(video_model, "TEXT_ENCODER", {**video_model.TEXT_ENCODER, **encoder})
    patch.setattr(video_model, "SIZES", sizes)
    for size in sizes.values():
        size["sample_frames"] = BLOCKS * TIMING.latents
    patch.setattr(video_model, "BLOCKS", BLOCKS)
    patch.setattr(video_model, "FRAMES", TIMING.frames(BLOCKS))
    patch.setattr(video_model, "ROLLOUTS", 2)
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


STAGES = ("vae", "transformer", "drafter")


def test_trained_folder_draws(trained):
    pipe = VideoPipeline.from_pretrained(trained[0])
    pipe.set_progress_bar_config(disable=True)
    pipe.enable_speculation(SpecConfig("sdvg", tau=-1.0))
    out = pipe("a red circle moves right", generator=torch.Generator().manual_seed(0))
    (frames,) = out.frames
    assert len(frames) == TIMING.frames(BLOCKS)
    assert {frame.size for frame in frames} == {(64, 64)}
    assert out.made_by == [["target", "drafter"]]


def test_trained_folder_is_shippable(trained):
    folder, records = trained
    assert [record["step"] for record in records] == [2, 2, 2]
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
    assert 0 <= records[1]["held_out"]["held_out_score"] <= 1


def test_latents_are_brought_to_unit_deviation(trained):
    vae = load_model(AutoencoderKLWan, trained[0] / "vae")
    rng = np.random.default_rng([0, 10**6])
    frames = clip_batch(rng, 20, video_autoencoder.FRAMES, 64, "held_out", 100)[1]
    with torch.no_grad():
        latents, _ = encode_block(vae, frames)
    assert latents.shape == (20, 5, 16, 8, 8)
    assert torch.allclose(latents.mean((0, 1, 3, 4)), torch.zeros(16), atol=0.02)
    assert torch.allclose(latents.std((0, 1, 3, 4)), torch.ones(16), atol=0.02)


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
        else:
            recipe = video_model.VideoModelRecipe(config, trained[0], name)
            # zero at first, which hides what is behind
            nn.init.normal_(recipe.model.transformer.head.head.weight, std=0.1)
    rng = np.random.default_rng(5)
    loss, _ = recipe.loss(recipe.draw(rng, 0), rng, 0)
    loss.backward()
    moved = [p for o in recipe.optimizers() for group in o.param_groups for p in group["params"]]
    wanted = {key: p for key, p in recipe.model.named_parameters() if p.requires_grad}
    assert {id(p) for p in moved} == {id(p) for p in wanted.values()}
    for key, weight in wanted.items():
        assert weight.grad is not None, key
    frozen = {
        key.split(".")[0] for key, p in recipe.model.named_parameters() if not p.requires_grad
    }
    assert frozen == ({"text_encoder"} if name == "drafter" else set())


def test_a_perfect_model_has_no_error(trained, tiny, tmp_path, monkeypatch):
    """What the network is asked for is the velocity of the noisy frames that it is given."""
    recipe = video_model.VideoModelRecipe(TrainConfig(tmp_path, 4, 2), trained[0])
    rng = np.random.default_rng(3)
    captions, pixels = recipe.draw(rng, 0)
    truth = encode_block(recipe.vae, pixels)[0].repeat(video_model.REPEATS, 1, 1, 1, 1)
    seen = {}

    def velocity(noisy, timesteps, text, clean):
        sigma = timesteps[:, :, None, None, None] / 1000
        seen.update(times=timesteps, text=text, off=(clean - truth).abs().amax())
        return (noisy - truth) / sigma  # x = (1 - σ) x0 + σ noise

    monkeypatch.setattr(recipe.model.transformer, "forward", velocity)
    keep = np.array([True, False, True, True])
    with torch.no_grad():
        error = recipe._error(recipe.model, captions, pixels, keep, rng)
    assert error.shape == (4, 3 * BLOCKS)
    assert float(error.max()) < 1e-4
    blocks = seen["times"].view(4, BLOCKS, 3)
    assert torch.equal(blocks, blocks[:, :, :1].expand(-1, -1, 3))
    assert len(blocks[:, :, 0].unique()) == 4 * BLOCKS
    assert 0 < float(seen["off"]) < 1
    with torch.no_grad():
        (nothing,) = recipe._features(recipe.model, [""])
    assert torch.equal(seen["text"][1, :1], nothing)
    assert not seen["text"][1, 1:].any()
    assert not torch.equal(seen["text"][3, :1], nothing)  # the same caption, kept


def test_the_drafter_needs_the_targets_caption_encoder(trained, tiny, tmp_path):
    folder, _ = trained
    recipe = video_model.VideoModelRecipe(TrainConfig(tmp_path, 4, 2), folder, "drafter")
    stored = load_file(folder / "text_encoder" / "model.safetensors")
    mine = recipe.model.text_encoder.state_dict()
    assert all(torch.equal(mine[name], value.float()) for name, value in stored.items())
    (tmp_path / "vae").symlink_to(folder / "vae")
    with pytest.raises(InputError, match="train its transformer first"):
        video_model.VideoModelRecipe(TrainConfig(tmp_path, 4, 2), tmp_path, "drafter")


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
                ids = words(sample_prompt(rng, kind, split).prompt)["input_ids"]
                assert words.unk_token_id not in ids
                assert len(ids) <= words.model_max_length


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
    def work(name):
        with torch.device("meta"):
            model = WanTransformer(**video_model.SIZES[name])
        return sum(p.numel() for p in model.blocks.parameters())

    assert work("drafter") <= work("transformer") / 6
