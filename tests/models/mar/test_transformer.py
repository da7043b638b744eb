"""MAR: its blocks against torch's own, its passes against one of masks, its iterations."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from mmspec.engine.coins import ProductionCoins
from mmspec.errors import InputError
from mmspec.models.mar.denoiser import PackedHead
from mmspec.models.mar.iterations import MarBackbone, MarPlan, plainly
from mmspec.models.mar.transformer import MarBlock, MarTransformer

TINY = dict(
    token_dim=4,
    grid=3,
    buffer_size=5,
    encoder_embed_dim=16,
    encoder_depth=2,
    encoder_num_heads=2,
    decoder_embed_dim=24,
    decoder_depth=2,
    decoder_num_heads=3,
    diffloss_d=1,
    diffloss_w=12,
    class_num=7,
)


def random_mar(**changes) -> MarTransformer:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MarTransformer(**{**TINY, **changes})
        for weight in model.parameters():
            nn.init.normal_(weight, std=0.3)
    return model.double().eval()


@pytest.fixture(scope="module")
def mar() -> MarTransformer:
    return random_mar()


def rand(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def torch_block(block: MarBlock, heads: int) -> nn.TransformerEncoderLayer:
    """The block as torch has it."""
    width = block.norm1.weight.shape[0]
    layer = nn.TransformerEncoderLayer(
        width,
        heads,
        block.mlp.fc1.out_features,
        dropout=0,
        activation="gelu",
        layer_norm_eps=1e-6,
        batch_first=True,
        norm_first=True,
    )
    names = {
        "attn.qkv.weight": "self_attn.in_proj_weight",
        "attn.qkv.bias": "self_attn.in_proj_bias",
        "attn.proj": "self_attn.out_proj",
        "mlp.fc1": "linear1",
        "mlp.fc2": "linear2",
    }
    state = {}
    for name, value in block.state_dict().items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs) if name.startswith(ours) else name
        state[name] = value
    layer.load_state_dict(state)
    return layer.double().eval()


def masked_mar(model: MarTransformer, tokens, known, buffer) -> torch.Tensor:
    """Conditions of all places `[L, E]` of one picture, as the authors' code goes about it.

    `tokens [L, C]`, of which `known [L]` says which count.
    """
    keep = torch.cat([torch.ones(model.prefix_length, dtype=torch.bool), known])
    x = torch.cat([buffer, model.z_proj(tokens)])
    x = model.z_proj_ln(x + model.encoder_pos_embed_learned[0])[keep][None]
    for block in model.encoder_blocks:
        x = torch_block(block, TINY["encoder_num_heads"])(x)
    x = model.decoder_embed(model.encoder_norm(x))
    grid = model.mask_token[0].repeat(len(keep), 1)
    grid[keep] = x[0]
    x = (grid + model.decoder_pos_embed_learned[0])[None]
    for block in model.decoder_blocks:
        x = torch_block(block, TINY["decoder_num_heads"])(x)
    x = model.decoder_norm(x)[0, model.prefix_length :]
    return x + model.diffusion_pos_embed_learned[0]


@torch.no_grad()
def test_block_is_torchs(mar):
    x = rand(2, 6, 16)
    block = mar.encoder_blocks[0]
    wanted = torch_block(block, 2)(x)
    assert torch.allclose(block(x), wanted, atol=1e-10)
    queries = torch.tensor([[4, 0], [2, 5]])
    some = torch.stack([wanted[0, [4, 0]], wanted[1, [2, 5]]])
    assert torch.allclose(block(x, queries=queries), some, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("known", [[], [4], [8, 0, 3], [0, 1, 2, 3, 5, 6, 7, 8]])
def test_conditions_are_those_of_the_masked_model(mar, known):
    tokens, label = rand(9, 4), torch.tensor([3])
    wanted = [place for place in range(9) if place not in known]
    mask = torch.zeros(9, dtype=torch.bool)
    mask[known] = True
    truth = masked_mar(mar, tokens, mask, mar.classes(label)[0])[wanted]
    positions = torch.tensor(known, dtype=torch.long)
    z = mar(
        tokens[positions][None], positions[None], mar.classes(label), torch.tensor(wanted)[None]
    )
    assert torch.allclose(z[0], truth, atol=1e-9)


@torch.no_grad()
def test_buffers(mar):
    told = mar.classes(torch.tensor([2, 5]))
    assert torch.equal(told, mar.class_emb.weight[[2, 5]][:, None].expand(2, 5, 16))
    assert torch.equal(mar.nothing(2), mar.fake_latent[None].expand(2, 5, 16))
    captioned = random_mar(condition="caption", caption_dim=6)
    features = rand(2, 5, 6)
    hidden = nn.functional.gelu(features @ captioned.caption_emb.fc1.weight.T, approximate="tanh")
    wanted = hidden @ captioned.caption_emb.fc2.weight.T
    assert torch.allclose(captioned.captions(features), wanted, atol=1e-12)
    assert not hasattr(captioned, "class_emb")


@pytest.mark.parametrize("name", ["condition", "noise_schedule"])
def test_names_that_nobody_knows(name):
    with pytest.raises(InputError, match=f"unknown {name.replace('_', ' ')} 'clas'"):
        random_mar(**{name: "clas"})


# --- iterations -----------------------------------------------------------------------------------


def published_counts(length: int, iterations: int) -> list[int]:
    """Masked tokens after each iteration, as the authors' sampling loop arrives at them."""
    masked, counts = length, []
    for step in range(iterations):
        left = math.floor(length * math.cos(math.pi / 2.0 * (step + 1) / iterations))
        left = max(1, min(masked - 1, left))
        counts.append(left)
        masked = left
    return counts


@pytest.mark.parametrize("length", [1, 9, 64, 256])
def test_every_token_is_decided_once(length):
    for iterations in {1, 2, 7, 16, 33, 64, 256}:
        if iterations > length:
            with pytest.raises(InputError, match=f"from 1 to {length}, not {iterations}"):
                MarPlan(length, iterations)
            continue
        masked = MarPlan(length, iterations).masked
        assert (masked[0], masked[-1], len(masked)) == (length, 0, iterations + 1)
        drawn = [before - after for before, after in pairwise(masked)]
        assert min(drawn) >= 1
        assert sum(drawn) == length
        assert masked[1:-1] == published_counts(length, iterations)[:-1]


@pytest.mark.parametrize("schedule", ["linear", "constant"])
def test_guidance_is_the_published_one(schedule):
    plan = MarPlan(64, 12, 3.5, schedule)
    for left, masked in zip(published_counts(64, 12), plan.masked[1:], strict=True):
        published = 1 + (3.5 - 1) * (64 - left) / 64 if schedule == "linear" else 3.5
        assert plan.guidance(masked) == pytest.approx(published, abs=1e-12)


def test_diffusion_steps_shrink():
    plan = MarPlan(64, 10, diffusion_steps=(50, 5))
    assert [plan.steps(k) for k in range(10)] == [50, 45, 40, 35, 30, 25, 20, 15, 10, 5]
    assert [MarPlan(64, 4).steps(k) for k in range(4)] == [100] * 4
    assert MarPlan(64, 1, diffusion_steps=(50, 5)).steps(0) == 50


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(iterations=0), "iterations must be from 1 to 9, not 0"),
        (dict(guidance_scale=-1.0), "guidance_scale must be from 0 to 100"),
        (dict(guidance_schedule="linaer"), "did you mean 'linear'"),
        (dict(temperature=-0.1), "temperature must be from 0"),
        (dict(diffusion_steps=1), "diffusion_steps must be from 2 to 1000, not 1"),
        (dict(diffusion_steps=(50, 1)), "diffusion_steps must be from 2 to 1000, not 1"),
    ],
)
def test_plans_out_of_range(changes, message):
    with pytest.raises(InputError, match=message):
        replace(MarPlan(9, 3), **changes)


def generate(mar: MarTransformer, labels: list[int], seeds: list[int], plan: MarPlan):
    """Tokens `[B, L, C]`, and the places that every iteration drew."""
    with torch.inference_mode():
        told = torch.tensor(labels)
        parts = [mar.classes(told)] + [mar.nothing(len(labels))] * plan.guided
        backbone = MarBackbone(mar, PackedHead(mar.head), torch.cat(parts), plan, seeds)
        tokens = torch.zeros(len(labels), plan.length, 4, dtype=torch.float64)
        positions = []
        for prediction in backbone.predictions(tokens):
            drawn = plainly(prediction).unflatten(0, (len(labels), -1))
            at = prediction.positions[..., None].expand_as(drawn)
            assert not tokens.gather(1, at).any()
            tokens.scatter_(1, at, drawn)
            positions.append(prediction.positions)
    return tokens, positions


@pytest.mark.parametrize("scale", [1.0, 2.5])
@pytest.mark.parametrize("steps", [8, (8, 3)])
def test_row_does_not_depend_on_its_neighbours(mar, scale, steps):
    plan = MarPlan(9, 4, scale, temperature=0.9, diffusion_steps=steps)
    tokens, positions = generate(mar, [0, 6, 3], [11, 22, 33], plan)
    assert torch.equal(torch.cat(positions, 1).sort(-1).values, torch.arange(9).expand(3, 9))
    assert tokens.isfinite().all()
    alone, where = generate(mar, [6], [22], plan)
    assert torch.allclose(tokens[1], alone[0], rtol=1e-8, atol=1e-8)
    assert torch.equal(torch.cat(where, 1)[0], torch.cat(positions, 1)[1])
    other, _ = generate(mar, [6], [23], plan)
    assert not torch.allclose(other, alone)


@torch.inference_mode()
def test_orders_are_even_and_belong_to_rows(mar):
    """Of the first two places of a picture, all 72 pairs are as likely."""
    plan, seeds = MarPlan(9, 9, diffusion_steps=2), list(range(7200))
    told = mar.classes(torch.tensor([0])).expand(len(seeds), -1, -1)

    def first_two(seeds):
        backbone = MarBackbone(mar, PackedHead(mar.head), told[: len(seeds)], plan, seeds)
        tokens = torch.zeros(len(seeds), 9, 4, dtype=torch.float64)
        found = backbone.predictions(tokens)
        return torch.cat([next(found).positions, next(found).positions], 1)

    orders = first_two(seeds)
    counts = torch.unique(orders, dim=0, return_counts=True)[1]
    assert len(counts) == 72
    assert float((counts - 100).abs().max()) < 5 * 100**0.5
    assert torch.equal(first_two([17]), orders[17:18])


@torch.no_grad()
def test_generation_is_the_published_loop(mar):
    """Iteration by iteration for one picture, with masks and the guided head of the authors."""
    plan = MarPlan(9, 4, 2.0, diffusion_steps=6)
    tokens, positions = generate(mar, [5], [77], plan)
    coins, masked = ProductionCoins([77]), published_counts(9, 4)
    told, nothing = mar.classes(torch.tensor([5]))[0], mar.nothing(1)[0]
    schedule, known = mar.schedule.respaced(6), torch.zeros(9, dtype=torch.bool)
    canvas = torch.zeros(9, 4, dtype=torch.float64)
    for k, wanted in enumerate(positions):
        at = wanted[0]
        rows = [masked_mar(mar, canvas, known, buffer)[at] for buffer in (told, nothing)]
        scale = 1 + (2.0 - 1) * (9 - masked[k]) / 9
        own = coins.at(torch.zeros_like(at), at).round(0)[0]
        drawn = own.noise(torch.zeros_like(at)[:, None], 6 * 4).view(-1, 6, 4)
        x = drawn[:, 0]
        for i in range(1, 7):
            t = torch.full((len(at),), 6 - i)
            times = schedule.timesteps[t]
            (noise_c, between), (noise_u, _) = (mar.head(x, times, z) for z in rows)
            x = schedule.mean(x, noise_u + scale * (noise_c - noise_u), t)
            if i < 6:
                x = x + (0.5 * schedule.log_variance(between, t)).exp() * drawn[:, i]
        canvas[at], known[at] = x, True
    assert known.all()
    assert torch.allclose(tokens[0], canvas, rtol=1e-7, atol=1e-7)
