"""Schedules and denoising steps against the published formulas, written down once more in numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler

from mmspec.errors import InputError
from mmspec.models.mar.denoiser import HeadDenoiser, PackedHead
from mmspec.models.mar.diffusion_head import DiffusionHead
from mmspec.models.mar.schedule import DiffusionSchedule


def published_betas(name: str) -> np.ndarray:
    """GLIDE's and MAR's named schedules, step by step."""
    if name == "linear":
        return np.linspace(0.0001, 0.02, 1000)

    def left(t: float) -> float:
        return math.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2

    return np.array([min(1 - left((i + 1) / 1000) / left(i / 1000), 0.999) for i in range(1000)])


def published_steps(count: int) -> list[int]:
    """The timesteps that one section of `count` steps keeps, as the authors add them up."""
    stride, at, steps = 999 / (count - 1), 0.0, []
    for _ in range(count):
        steps.append(round(at))
        at += stride
    return steps


class Published:
    """The law of one step as the authors compute it: by way of the predicted clean end."""

    def __init__(self, name: str, count: int) -> None:
        bars = np.cumprod(1 - published_betas(name))
        self.timesteps = published_steps(count)
        last, betas = 1.0, []
        for bar in bars[self.timesteps]:
            betas.append(1 - bar / last)
            last = bar
        self.betas = np.array(betas)
        self.bars = np.cumprod(1 - self.betas)
        self.before = np.append(1.0, self.bars[:-1])
        self.variance = self.betas * (1 - self.before) / (1 - self.bars)

    def law(self, x, t, noise, between) -> tuple[np.ndarray, np.ndarray]:
        clean = np.sqrt(1 / self.bars[t]) * x - np.sqrt(1 / self.bars[t] - 1) * noise
        mean = (
            self.betas[t] * np.sqrt(self.before[t]) / (1 - self.bars[t]) * clean
            + (1 - self.before[t]) * np.sqrt(1 - self.betas[t]) / (1 - self.bars[t]) * x
        )
        low = np.log(self.variance[max(t, 1)])
        log = (between + 1) / 2 * np.log(self.betas[t]) + (1 - (between + 1) / 2) * low
        return mean, log


@pytest.mark.parametrize("name", ["cosine", "linear"])
@pytest.mark.parametrize("count", [2, 5, 50, 100, 250, 1000])
def test_laws_are_the_published_ones(name, count):
    schedule, truth = DiffusionSchedule.trained(name).respaced(count), Published(name, count)
    assert schedule.timesteps.tolist() == truth.timesteps
    rng = np.random.default_rng(0)
    for t in {0, 1, count // 2, count - 1}:
        x, noise, between = rng.standard_normal((3, 4, 6))
        mean, log = truth.law(x, t, noise, between)
        steps = torch.full((4,), t)
        ours = schedule.mean(torch.from_numpy(x), torch.from_numpy(noise), steps)
        logs = schedule.log_variance(torch.from_numpy(between), steps)
        np.testing.assert_allclose(ours, mean, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(logs, log, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_variances_of_half_precision_heads(name):
    """The least and the largest lie closer than half precision tells apart, and a head has both."""
    schedule, steps = DiffusionSchedule.trained(name), torch.tensor([900, 900])
    between = torch.tensor([[-1.0], [1.0]], dtype=torch.bfloat16, requires_grad=True)
    low, high = schedule.log_variance(between, steps)
    assert float(high.detach()) > float(low.detach())
    assert float(low.detach()) == pytest.approx(float(schedule.low[900]), rel=1e-6)
    high.sum().backward()
    half = float(schedule.high[900] - schedule.low[900]) / 2
    assert between.grad[1].item() == pytest.approx(half, rel=1e-2)


def test_all_steps_agree_with_diffusers():
    """Its scheduler of the same name, on the unspaced chain."""
    scheduler = DDPMScheduler(
        beta_schedule="squaredcos_cap_v2", variance_type="learned_range", clip_sample=False
    )
    scheduler.set_timesteps(1000)
    schedule = DiffusionSchedule.trained("cosine")
    generator = torch.Generator().manual_seed(0)
    for t in (1, 10, 400, 900):
        x, noise, between = torch.randn(3, 1, 6, 1, 1, generator=generator)
        out = torch.cat([noise, between], dim=1)
        moved = scheduler.step(out, t, x, generator=torch.Generator().manual_seed(t)).prev_sample
        drawn = torch.randn(x.shape, generator=torch.Generator().manual_seed(t))
        steps = torch.full((1,), t)
        flat = [value.flatten(1) for value in (x, noise, between, drawn)]
        deviation = (0.5 * schedule.log_variance(flat[2], steps)).exp()
        ours = schedule.mean(flat[0], flat[1], steps) + deviation * flat[3]
        assert torch.allclose(ours, moved.flatten(1), atol=2e-3)


def test_respacing_keeps_both_ends():
    schedule = DiffusionSchedule.trained("cosine")
    for count in (*range(2, 60), 100, 250, 333, 1000):
        steps = schedule.respaced(count).timesteps
        assert steps.tolist() == published_steps(count)
        assert (steps[0], steps[-1], len(steps.unique())) == (0, 999, count)


def test_respacing_keeps_the_noise_of_its_steps():
    whole = DiffusionSchedule.trained("cosine")
    spaced = whole.respaced(100)
    assert torch.allclose(spaced.alphas_bar, whole.alphas_bar[spaced.timesteps], rtol=1e-9)


@pytest.mark.parametrize("count", [1, 0, 1001])
def test_respacing_out_of_range(count):
    with pytest.raises(InputError, match=f"from 2 to 1000, not {count}"):
        DiffusionSchedule.trained("cosine").respaced(count)


def test_posterior_mean_is_that_of_the_clean_end():
    """Two joint Gaussians: the mean of x_{t-1} given x_t and x_0, by conditioning."""
    schedule = DiffusionSchedule.trained("cosine").respaced(20)
    for t in (1, 7, 19):
        bar, before = (float(schedule.alphas_bar[i]) for i in (t, t - 1))
        step = math.sqrt(bar / before)  # x_t = step · x_{t-1} + noise
        clean, noisy = torch.tensor([[0.7]]).double(), torch.tensor([[-0.4]]).double()
        gain = step * (1 - before) / (1 - bar)  # covariance over variance, given x_0
        prior = math.sqrt(before) * clean
        wanted = prior + gain * (noisy - step * prior)
        mean = schedule.posterior_mean(clean, noisy, torch.tensor([t]))
        assert torch.allclose(mean, wanted, atol=1e-12)


# --- the head -------------------------------------------------------------------------------------


def random_head(width: int) -> DiffusionHead:
    """Random everywhere: a head starts with zeros, which would hide what is behind them."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = DiffusionHead(token_dim=4, z_dim=10, width=width, depth=2)
        for weight in head.parameters():
            torch.nn.init.normal_(weight, std=width**-0.5)
    return head.double().eval()


@pytest.fixture
def head() -> DiffusionHead:
    return random_head(24)


def published_head(head: DiffusionHead, x, t, z) -> np.ndarray:
    """`SimpleMLPAdaLN` in numpy, from the published tensor names."""
    w = {name: value.detach().numpy() for name, value in head.state_dict().items()}

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def silu(x):
        return x / (1 + np.exp(-x))

    def norm(x):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)

    # in float32, as published: an angle of 999 has an error of its own
    speeds = torch.exp(-math.log(10000) * torch.arange(128) / 128)
    angles = torch.from_numpy(t)[:, None] * speeds
    waves = torch.cat([angles.cos(), angles.sin()], dim=-1).double().numpy()
    y = linear("time_embed.mlp.2", silu(linear("time_embed.mlp.0", waves)))
    y = silu(y + linear("cond_embed", z))
    h = linear("input_proj", x)
    for i in range(2):
        block = f"res_blocks.{i}"
        shift, scale, gate = np.split(linear(f"{block}.adaLN_modulation.1", y), 3, -1)
        inner = norm(h) * w[f"{block}.in_ln.weight"] + w[f"{block}.in_ln.bias"]
        inner = silu(linear(f"{block}.mlp.0", inner * (1 + scale) + shift))
        h = h + gate * linear(f"{block}.mlp.2", inner)
    shift, scale = np.split(linear("final_layer.adaLN_modulation.1", y), 2, -1)
    return linear("final_layer.linear", norm(h) * (1 + scale) + shift)


def test_head_is_the_published_one(head):
    rng = np.random.default_rng(0)
    x, z, t = rng.standard_normal((5, 4)), rng.standard_normal((5, 10)), rng.integers(0, 1000, 5)
    wanted = published_head(head, x, t, z)
    out = head(torch.from_numpy(x), torch.from_numpy(t), torch.from_numpy(z))
    np.testing.assert_allclose(torch.cat(out, -1).detach(), wanted, atol=1e-9)


@pytest.mark.parametrize("scale", [None, 1.0, 2.7, 0.0])
@pytest.mark.parametrize("temperature", [1.0, 0.9])
def test_step_is_the_published_law(head, scale, temperature):
    """Rows × steps in one call, with guidance inside, against one token at one step at a time."""
    rng, truth = np.random.default_rng(1), Published("cosine", 25)
    schedule = DiffusionSchedule.trained("cosine").respaced(25)
    groups = 1 if scale is None else 2
    x, z = rng.standard_normal((15, 4)), rng.standard_normal((3, groups, 10))
    t = np.array([[24, 23, 22, 1, 0], [0, 3, 9, 9, 24], [7, 6, 5, 4, 3]]).flatten()
    with torch.inference_mode():
        denoiser = HeadDenoiser(PackedHead(head), schedule, temperature)
        condition = denoiser.condition(torch.from_numpy(z), scale).repeat_interleave(5, 0)
        mean, deviation = denoiser.step(torch.from_numpy(x), torch.from_numpy(t), condition)
    for row, step in enumerate(t):
        told = np.array([truth.timesteps[step]])
        out = [published_head(head, x[row][None], told, one[None])[0] for one in z[row // 5]]
        noise, between = out[0][:4], out[0][4:]
        if scale is not None:
            noise = out[1][:4] + scale * (noise - out[1][:4])
        wanted, log = truth.law(x[row], step, noise, between)
        std = np.exp(0.5 * log) * temperature if step else np.zeros(4)
        np.testing.assert_allclose(mean[row], wanted, rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(deviation[row], std, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_head_in_inference_form(dtype):
    """Its weights are packed in another way; against the module itself."""
    head = random_head(416).to(dtype)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, generator=generator).to(dtype)
    z = torch.randn(3, 2, 10, generator=generator).to(dtype)
    times = torch.tensor([3, 500, 999])
    with torch.inference_mode():
        y = head.time_embed(times)[:, None] + head.cond_embed(z)
        out = PackedHead(head)(x, y)
        for group in (0, 1):
            wanted = torch.cat(head(x, times, z[:, group]), dim=-1)
            assert torch.allclose(out[:, group], wanted, atol=1e-4)


def test_guidance_of_each_row(head):
    denoiser = HeadDenoiser(PackedHead(head), DiffusionSchedule.trained("cosine").respaced(10))
    generator = torch.Generator().manual_seed(0)
    z, x = (torch.randn(*size, generator=generator).double() for size in ((3, 2, 10), (3, 4)))
    scales, t = torch.tensor([1.0, 1.5, 4.0]), torch.full((3,), 6)
    with torch.inference_mode():
        mixed = denoiser.step(x, t, denoiser.condition(z, scales))[0]
        for row, scale in enumerate(scales.tolist()):
            one = slice(row, row + 1)
            alone = denoiser.step(x[one], t[one], denoiser.condition(z[one], scale))[0]
            assert torch.allclose(mixed[one], alone, atol=1e-12)


def test_sampling_follows_the_steps(head):
    """The chain written out with the published law, from the same noises."""
    rng, truth = np.random.default_rng(2), Published("cosine", 12)
    noise, z = rng.standard_normal((2, 12, 4)), rng.standard_normal((2, 2, 10))
    with torch.inference_mode():
        denoiser = HeadDenoiser(PackedHead(head), DiffusionSchedule.trained("cosine").respaced(12))
        condition = denoiser.condition(torch.from_numpy(z), 1.8)
        ours = denoiser.sample(condition, torch.from_numpy(noise))
    row = noise[:1, 0]
    for i in range(1, 13):
        t = 12 - i
        told = np.array([truth.timesteps[t]])
        out = [published_head(head, row, told, z[:1, g]) for g in (0, 1)]
        guided = out[1][:, :4] + 1.8 * (out[0][:, :4] - out[1][:, :4])
        mean, log = truth.law(row, t, guided, out[0][:, 4:])
        row = mean if t == 0 else mean + np.exp(0.5 * log) * noise[:1, i]
    np.testing.assert_allclose(ours[:1], row, rtol=1e-7, atol=1e-8)
