"""The recipes of continuous tokens: their losses, what they learn from, and a folder end to end."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import integrate, stats
from torch import nn

from mmspec import ContinuousImagePipeline
from mmspec.errors import InputError
from mmspec.models.mar.denoiser import PackedHead
from mmspec.models.mar.iterations import MarBackbone, MarPlan, plainly
from mmspec.models.mar.schedule import DiffusionSchedule
from mmspec.models.mar.transformer import MarTransformer
from mmspec.train import recipes
from mmspec.train.caption_encoder import CaptionEncoderRecipe
from mmspec.train.continuous import (
    autoencoder as kl_autoencoder,
)
from mmspec.train.continuous import (
    drafter as mar_drafter,
)
from mmspec.train.continuous import (
    target as mar_target,
)
from mmspec.train.continuous.diffusion_loss import NoisyTokens, divergence, hybrid_loss
from mmspec.train.continuous.target import masked_conditions, random_masks
from mmspec.train.trainer import TrainConfig

STAGES = ("vae", "text_encoder", "transformer", "drafter")


def shrink(patch: pytest.MonkeyPatch) -> None:
    """The recipes at sizes that train in seconds."""
    small = dict(encoder_depth=1, decoder_depth=1, diffloss_d=1)
    widths = ("encoder_embed_dim", "decoder_embed_dim", "diffloss_w")
    target = {**mar_target.TRANSFORMER, **small, **dict.fromkeys(widths, 32)}
    drafter = {**target, **dict.fromkeys(widths, 24)}
    vae = {**kl_autoencoder.EMBEDDED, "block_out_channels": (16, 16, 16)}
    patch.setattr(mar_target, "TRANSFORMER", target)
    patch.setattr(mar_drafter, "DRAFTER", drafter)
    patch.setattr(kl_autoencoder, "EMBEDDED", vae)


@pytest.fixture
def tiny(monkeypatch):
    shrink(monkeypatch)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A pipeline folder that both recipes have gone through, two steps a stage."""
    folder = tmp_path_factory.mktemp("runs") / "continuous"
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        shrink(patch)
        records = recipes.train("kl-autoencoder", folder, steps=2, batch_size=2)
        records += recipes.train("mar", folder, steps=2, batch_size=2)
    return folder, records


def test_trained_folder_draws(trained):
    folder, records = trained
    assert [record["step"] for record in records] == [2] * len(STAGES)
    pipe = ContinuousImagePipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    (picture,) = pipe("a photo of a red circle", num_iterations=4, diffusion_steps=5).images
    assert picture.size == (64, 64)
    assert pipe.drafter.config.encoder_embed_dim < pipe.transformer.config.encoder_embed_dim


def test_trained_folder_is_shippable(trained):
    folder, records = trained
    index = json.loads((folder / "model_index.json").read_text())
    assert index["_class_name"] == "ContinuousImagePipeline"
    assert {*index} == {"_class_name", *STAGES, "text_encoder", "tokenizer"}
    for part in STAGES:
        card = (folder / part / "README.md").read_text()
        saved = json.loads((folder / part / "training.json").read_text())
        assert "Not good for" in card
        for name, value in saved["held_out"].items():
            assert f"- {name}: {value:.4g}" in card
        (weights,) = (folder / part).glob("*.safetensors")
        assert {value.dtype for value in load_file(weights).values()} == {torch.float16}
    figures = {name: value for record in records for name, value in record["held_out"].items()}
    assert all(np.isfinite(value) for value in figures.values())
    assert 0 < figures["held_out_acceptance"] <= 1


def test_latents_are_brought_to_unit_deviation(trained, tiny, tmp_path):
    folder, records = trained
    config = json.loads((folder / "vae" / "config.json").read_text())
    spread = records[0]["held_out"]["latent_deviation"]
    assert config["scaling_factor"] == pytest.approx(1 / spread, rel=1e-3)
    recipe = mar_target.MarTargetRecipe(TrainConfig(tmp_path, 10, 64), folder)
    rng = np.random.default_rng(0)
    tokens = mar_target.scene_tokens(recipe.vae, recipe.draw(rng, 0)[1], rng)
    assert tokens.shape == (64, 64, 16)
    assert float(tokens.std()) == pytest.approx(1, abs=0.1)


def test_further_training_starts_from_the_component(trained, tiny):
    folder, _ = trained
    with pytest.raises(InputError, match="is for one stage"):
        recipes.train("mar", folder, init="transformer")
    again = mar_drafter.MarDrafterRecipe(TrainConfig(folder, 4, 2), folder, init="drafter")
    stored = load_file(folder / "drafter" / "diffusion_pytorch_model.safetensors")
    for name, value in again.model.state_dict().items():
        assert torch.equal(value, stored[name].float())
    assert again.origin == folder / "drafter"


def test_a_target_leaves_its_caption_encoder_as_it_is(trained, tiny, tmp_path):
    folder = tmp_path / "mar"
    shutil.copytree(trained[0], folder)
    file = folder / "text_encoder" / "model.safetensors"
    own = {name: value + 1 for name, value in load_file(file).items()}
    save_file(own, file, metadata={"format": "pt"})
    recipe = mar_target.MarTargetRecipe(TrainConfig(folder, 4, 2), folder, init="transformer")
    found = recipe.model.text_encoder.state_dict()
    assert all(torch.equal(found[name], value.float()) for name, value in own.items())
    assert not any(p.requires_grad for p in recipe.model.text_encoder.parameters())


def test_a_target_without_a_caption_encoder_is_refused(trained, tiny, tmp_path):
    (tmp_path / "vae").symlink_to(trained[0] / "vae")
    with pytest.raises(InputError, match="no text_encoder; train it first: --stage captions"):
        mar_target.MarTargetRecipe(TrainConfig(tmp_path, 4, 2), tmp_path)


def test_training_in_half_precision(trained, tiny, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(trained[0], folder, ignore=shutil.ignore_patterns("training"))
    for record in recipes.train("mar", folder, steps=1, batch_size=4, precision="bfloat16"):
        assert all(np.isfinite(value) for value in record["held_out"].values())


def test_folder_of_another_pipeline(tiny, tmp_path):
    (tmp_path / "model_index.json").write_text('{"_class_name": "ImagePipeline"}')
    with pytest.raises(InputError, match="holds a ImagePipeline, not a Continuous"):
        recipes.train("kl-autoencoder", tmp_path, steps=1, batch_size=2)


def recipe_of(name: str, folder, config: TrainConfig):
    if name == "vae":
        return kl_autoencoder.KlAutoencoderRecipe(config, folder)
    if name == "text_encoder":
        return CaptionEncoderRecipe(config, folder)
    kind = mar_target.MarTargetRecipe if name == "transformer" else mar_drafter.MarDrafterRecipe
    return kind(config, folder)


@pytest.mark.parametrize("name", STAGES)
def test_gradient_reaches_every_weight(trained, tiny, tmp_path, name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        recipe = recipe_of(name, trained[0], TrainConfig(tmp_path, 100, 8))
        for key, weight in recipe.model.named_parameters():
            if "final_layer" in key or "adaLN" in key:  # zero at first, which hides what is behind
                nn.init.normal_(weight, std=0.1)
        if name == "drafter":  # a teacher that says more than nothing
            nn.init.normal_(recipe.teacher.head.final_layer.linear.weight, std=0.1)
    rng = np.random.default_rng(5)
    for step in range(8):  # of which one masks a part of the tokens, not all of them
        loss, metrics = recipe.loss(recipe.draw(rng, step), rng, step)
        loss.backward()
        assert all(np.isfinite([float(loss.detach()), *metrics.values()]))
    moved = [p for o in recipe.optimizers() for group in o.param_groups for p in group["params"]]
    learnt = {key: p for key, p in recipe.model.named_parameters() if p.requires_grad}
    assert not any("text_encoder" in key for key in learnt)
    assert learnt.keys() >= {key for key, _ in recipe.model.named_parameters() if "blocks" in key}
    assert {id(p) for p in moved} == {id(p) for p in learnt.values()}
    assert len(moved) == len({id(p) for p in moved})
    for key, weight in learnt.items():
        assert weight.grad is not None, key
        assert weight.grad.isfinite().all(), key
        assert weight.grad.any(), key


def test_drafter_is_distilled_from_the_target_itself(trained, tiny, tmp_path):
    """A student with the teacher's own weights has nothing to learn, and every draft stands."""
    recipe = recipe_of("drafter", trained[0], TrainConfig(tmp_path, 100, 4))
    rng = np.random.default_rng(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for weight in recipe.teacher.head.parameters():
            nn.init.normal_(weight, std=0.2)
    figures = recipe.evaluate(recipe.model)
    assert figures["held_out_error"] > 1e-3
    assert figures["held_out_acceptance"] < 0.999
    says = recipe.teacher.register_to_config  # it learns for what the target is drawn with
    says(sample_temperature=0.5 * recipe.teacher.config.sample_temperature)
    colder = recipe.evaluate(recipe.model)
    assert colder["held_out_acceptance"] < figures["held_out_acceptance"] - 1e-3
    says(sample_guidance=1.0)
    unguided = recipe.evaluate(recipe.model)
    guided = pytest.approx(colder["held_out_guided_error"], rel=1e-2)
    assert unguided["held_out_guided_error"] != guided
    recipe.model = recipe.teacher
    loss, _ = recipe.loss(recipe.draw(rng, 0), rng, 0)
    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    same = recipe.evaluate(recipe.teacher)
    assert same["held_out_acceptance"] == pytest.approx(1, abs=1e-6)
    assert same["held_out_deviation_ratio"] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", mar_drafter.OBJECTIVES)
def test_objectives_of_gaussians_by_hand(name):
    """By integrals over both laws; their gradients; and none where the laws are the same."""
    for gap in (0.0, 0.3, 1.0, 4.0):
        p, q = stats.norm(0), stats.norm(gap)

        def whole(value, cross=gap / 2):  # of a function that may bend where the laws cross
            below, above = (
                integrate.quad(value, *ends, epsabs=1e-13, epsrel=1e-13)[0]
                for ends in ((-12, cross), (cross, 16))
            )
            return below + above

        kept = whole(lambda x, p=p, q=q: min(p.pdf(x), q.pdf(x)))
        truth = {
            "kl": whole(lambda x, p=p, q=q: p.pdf(x) * (p.logpdf(x) - q.logpdf(x))),
            "tv": whole(lambda x, p=p, q=q: abs(p.pdf(x) - q.pdf(x))) / 2,
            "log-acceptance": -math.log(kept),
        }
        # the laws cross halfway: what is kept shrinks by the density there
        slope = math.exp(-((gap / 2) ** 2) / 2) / (2 * math.pi) ** 0.5
        slopes = {"kl": gap, "tv": slope, "log-acceptance": slope / kept}
        d = torch.tensor(gap, dtype=torch.float64, requires_grad=True)
        loss = mar_drafter.OBJECTIVES[name](d)
        loss.backward()
        assert float(loss.detach()) == pytest.approx(truth[name], abs=1e-9)
        assert float(d.grad) == pytest.approx(slopes[name], abs=1e-9)


@pytest.mark.parametrize("objective", mar_drafter.OBJECTIVES)
def test_a_drafter_learns_by_any_of_them(trained, tiny, tmp_path, objective):
    """Its loss falls by a step against the gradient, and is none for the target itself."""
    config = TrainConfig(tmp_path, 100, 4)
    recipe = mar_drafter.MarDrafterRecipe(config, trained[0], objective=objective)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for key, weight in recipe.model.named_parameters():
            if "final_layer" in key:  # zero at first
                nn.init.normal_(weight, std=0.1)
    losses, rng = [], np.random.default_rng
    batch = recipe.draw(rng(0), 0)
    for _ in range(2):
        loss, figures = recipe.loss(batch, rng(1), 0)
        assert set(figures) == {objective, "nats"}
        assert float(loss.detach()) == pytest.approx(sum(figures.values()))
        losses.append(float(loss.detach()))
        recipe.model.zero_grad()
        loss.backward()
        with torch.no_grad():
            norm = sum(
                float(w.grad.square().sum())
                for w in recipe.model.parameters()
                if w.grad is not None
            )
            for weight in recipe.model.parameters():
                if weight.grad is not None:
                    weight -= 1e-4 * weight.grad / norm**0.5
    assert losses[1] < losses[0]
    recipe.model = recipe.teacher
    loss, _ = recipe.loss(batch, rng(1), 0)
    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    with pytest.raises(InputError, match="did you mean"):
        mar_drafter.MarDrafterRecipe(config, trained[0], objective=objective + "x")


def test_a_drafters_guess_is_guided_as_pictures_are():
    told, untold = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    guess = mar_drafter.Guess(torch.cat([told, untold]), torch.zeros(10, 3), guidance=5.0)
    assert torch.allclose(guess.guided, 5 * told - 4 * untold, atol=1e-6)
    assert MarPlan(64, 64, guidance_scale=5.0).guidance(16) == 1 + 4 * 48 / 64


# --- what is learned ------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_is_trained_is_what_is_drawn():
    """Two classes, on axes of their own; the tokens of a picture lie on the same side, by chance.

    So the head must split two modes, and the backbone must tell it which one the others took.
    """
    rng, length, count = np.random.default_rng(0), 4, 240
    size = dict(encoder_embed_dim=32, encoder_depth=1, encoder_num_heads=2, diffloss_d=2)
    inner = dict(decoder_embed_dim=32, decoder_depth=1, decoder_num_heads=2, diffloss_w=48)
    shape = dict(token_dim=2, grid=2, buffer_size=1, class_num=2, noise_schedule="linear")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MarTransformer(**size, **inner, **shape)
        model.init_weights()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = model.schedule
    for step in range(500):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1, (500 - step) / 200)
        labels = torch.from_numpy(rng.integers(0, 2, 64))
        sides = torch.from_numpy(rng.choice([-1.0, 1.0], (64, 1, 1)))
        spread = 0.1 * torch.from_numpy(rng.standard_normal((64, length, 2)))
        tokens = (sides * torch.eye(2)[labels][:, None] + spread).float()
        known, masked = random_masks(rng, 64, length)
        z, clean = masked_conditions(model, tokens, known, masked, model.classes(labels))
        noisy = NoisyTokens.draw(schedule, clean.repeat(4, 1), rng)
        error, bits = hybrid_loss(noisy, *model.head(noisy.noisy, noisy.timesteps, z.repeat(4, 1)))
        optimizer.zero_grad()
        (error + bits).backward()
        optimizer.step()
    labels = torch.arange(count) % 2
    with torch.inference_mode():
        plan = MarPlan(length, length, diffusion_steps=50)
        head = PackedHead(model.eval().head)
        backbone = MarBackbone(model, head, model.classes(labels), plan, list(range(count)))
        drawn = torch.zeros(count, length, 2)
        for prediction in backbone.predictions(drawn):
            positions = prediction.positions[..., None].expand(-1, -1, 2)
            drawn.scatter_(1, positions, plainly(prediction).unflatten(0, (count, -1)))
    on_axis = drawn.gather(2, labels[:, None, None].expand(-1, length, 1))[..., 0]
    sides = on_axis[:, :1].sign()
    assert float((sides > 0).float().mean()) == pytest.approx(0.5, abs=0.15)
    assert float((on_axis.sign() == sides).float().mean()) > 0.95
    assert float((on_axis * sides).mean()) == pytest.approx(1, abs=0.1)
    off_axis = drawn.sum(-1) - on_axis
    assert float(off_axis.mean()) == pytest.approx(0, abs=0.05)
    assert float(off_axis.std()) < 0.25


# --- what a head learns from ----------------------------------------------------------------------


def test_noisy_tokens_have_the_schedules_noise():
    schedule = DiffusionSchedule.trained("cosine").respaced(10)
    clean = torch.full((400_000, 1), 0.5, dtype=torch.float64)
    noisy = NoisyTokens.draw(schedule, clean, np.random.default_rng(0), first=1)
    assert noisy.t.unique().tolist() == list(range(1, 10))
    for t in range(1, 10):
        bar, x = float(schedule.alphas_bar[t]), noisy.noisy[noisy.t == t]
        assert float(x.mean()) == pytest.approx(0.5 * math.sqrt(bar), abs=0.02)
        assert float(x.var()) == pytest.approx(1 - bar, abs=0.03)
    assert torch.equal(noisy.timesteps, schedule.timesteps[noisy.t])


def test_divergence_is_torchs():
    rng = torch.Generator().manual_seed(0)
    mean, log, other, other_log = torch.randn(4, 5, 3, generator=rng).double()
    laws = [
        torch.distributions.Normal(m, (0.5 * v).exp()) for m, v in ((mean, log), (other, other_log))
    ]
    wanted = torch.distributions.kl_divergence(*laws)
    assert torch.allclose(divergence(mean, log, other, other_log), wanted, atol=1e-12)


def test_hybrid_loss_by_hand():
    """The error of the noise, and the bits between the true step back and the head's."""
    schedule = DiffusionSchedule.trained("cosine")
    clean = torch.randn(6, 3, generator=torch.Generator().manual_seed(1)).double()
    noisy = NoisyTokens.draw(schedule, clean, np.random.default_rng(1), first=1)
    noise = (noisy.noise + 0.1).requires_grad_()
    between = torch.full((6, 3), 0.3, dtype=torch.float64, requires_grad=True)
    error, bits = hybrid_loss(noisy, noise, between)
    assert float(error.detach()) == pytest.approx(0.01)
    wanted = 0.0
    for row in range(6):
        t = int(noisy.t[row])
        bar, before = (float(schedule.alphas_bar[i]) for i in (t, t - 1))
        beta = 1 - bar / before
        least = beta * (1 - before) / (1 - bar)
        variance = math.exp(0.65 * math.log(beta) + 0.35 * math.log(least))
        gap = beta / math.sqrt(1 - bar) * 0.1 / math.sqrt(1 - beta)
        nats = 0.5 * (least / variance - 1 - math.log(least / variance) + gap**2 / variance)
        wanted += nats / math.log(2) / 6
    assert float(bits.detach()) == pytest.approx(wanted, rel=1e-6)
    bits.backward()
    assert noise.grad is None  # the variance alone
    assert between.grad.any()


@pytest.mark.parametrize(("done", "alone", "weight"), [(0.0, 0.5, 0.3), (0.8, 0.0, 0.1)])
def test_the_first_part_of_a_run_is_for_what_the_caption_tells(
    trained, tiny, tmp_path, monkeypatch, done, alone, weight
):
    recipe = mar_target.MarTargetRecipe(TrainConfig(tmp_path, 100, 2), trained[0])
    recipe.done, shares = done, []
    parts = {name: torch.ones(()) for name in ("error", "shown")}
    monkeypatch.setattr(recipe, "_losses", lambda *given: shares.append(given[-1]) or {**parts})
    rng = np.random.default_rng(0)
    for _ in range(400):
        loss, figures = recipe.loss((["a photo of a ring"], None, None), rng, 0)
        assert float(loss) == pytest.approx(1 + weight)
        assert figures == {"error": 1.0, "shown": 1.0}
    assert np.mean([share == 1.0 for share in shares]) == pytest.approx(alone, abs=0.1)
    assert {*shares} <= {1.0, None}


def test_masks_are_what_generation_asks_for():
    rng, counts = np.random.default_rng(0), []
    for _ in range(4000):
        known, masked = random_masks(rng, 2, 16)
        assert torch.equal(
            torch.cat([known, masked], 1).sort(1).values, torch.arange(16).expand(2, 16)
        )
        counts.append(masked.shape[1])
    assert (min(counts), max(counts)) == (1, 16)
    assert random_masks(rng, 2, 16, share=1.0)[1].shape == (2, 16)
    # half as asked for: ⌈16 cos(π/2 · u)⌉ ≤ 8 where u ≥ 2/3; the others have 12 or more
    asked, many = np.array(counts) <= 8, np.array(counts) >= 12
    assert np.mean(asked) == pytest.approx(1 / 3 / 2, abs=0.02)
    u = math.acos(11 / 16) / (math.pi / 2)  # ⌈16 cos(π/2 · u)⌉ ≥ 12 up to here
    assert np.mean(many) == pytest.approx((1 + u) / 2, abs=0.02)
