"""Few-step sampling of blocks: the published schedule and loop, guidance, the same noise again."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from wans import SIZE, begin, latents, rand, tiny_wan

from mmspec.errors import InputError
from mmspec.models.wan.sampler import FewStepSampler, denoise_block

STEPS = FewStepSampler()


@pytest.fixture(scope="module")
def wan():
    return tiny_wan()


def drawn(seed: int, rows: int = 1):
    return lambda step: latents(rows, 2, 100 * seed + step)


@pytest.mark.parametrize("shift", [1.0, 5.0, 8.0])
def test_schedule_is_the_published_one(shift):
    """A table of 1000 warped timesteps, looked up from its noisy end."""
    sigmas = torch.linspace(1, 0, 1001, dtype=torch.float64)[:-1]
    timesteps = 1000 * shift * sigmas / (1 + (shift - 1) * sigmas)
    wanted = timesteps[1000 - torch.tensor([1000, 750, 500, 250])] / 1000
    found = FewStepSampler(shift=shift).sigmas
    assert torch.allclose(torch.tensor(found, dtype=torch.float64), wanted, atol=1e-12)
    assert FewStepSampler((1000, 500), 5.0).sigmas == pytest.approx([1, 5 / 6])


@torch.no_grad()
def test_loop_is_the_published_one(wan):
    """Predict x_0 from the velocity, add noise for the next timestep; behind two clean blocks."""
    cache, noise, asked = begin(wan), latents(1, 2, seed=7), []

    def draw(step: int) -> torch.Tensor:
        asked.append(step)
        return drawn(1)(step)

    wan.commit(latents(1, 4), cache)
    found = denoise_block(wan, cache, noise, STEPS, draw)
    timesteps, x = [1000.0, 937.5, 2500 / 3, 625.0], noise
    for i, t in enumerate(timesteps):
        x_0 = x - t / 1000 * wan.denoise(x, t, cache)
        if i < 3:
            ahead = timesteps[i + 1] / 1000
            x = (1 - ahead) * x_0 + ahead * latents(1, 2, 101 + i)
    assert torch.allclose(found, x_0, rtol=0, atol=1e-9)
    assert asked == [1, 2, 3]
    assert cache.blocks == 2


@torch.no_grad()
@pytest.mark.parametrize("sampler", [STEPS, FewStepSampler((1000,)), FewStepSampler((1000, 90))])
def test_a_network_that_knows_the_block_gives_it(sampler):
    truth = latents(2, 2)

    class Knows:
        def denoise(self, noisy, timestep, cache, clean):
            return (noisy - truth) / (timestep / 1000)

    cache = begin(tiny_wan(), 2)
    found = denoise_block(Knows(), cache, latents(2, 2, seed=1), sampler, drawn(2, rows=2))
    assert torch.allclose(found, truth, atol=1e-12)


@torch.no_grad()
def test_without_fresh_noise_it_follows_the_flow(wan):
    """Euler's steps along the velocity, whoever would draw what."""
    cache, noise = begin(wan), latents(1, 2, seed=7)
    sampler = replace(STEPS, renoise=0.0)
    found, x = denoise_block(wan, cache, noise, sampler, None), noise
    for sigma, ahead in pairwise([*sampler.sigmas, 0.0]):
        x = x + (ahead - sigma) * wan.denoise(x, 1000 * sigma, cache)
    assert torch.allclose(found, x, rtol=0, atol=1e-9)


@torch.no_grad()
def test_part_of_the_noise_is_fresh(wan):
    cache, noise = begin(wan), latents(1, 2, seed=7)
    sampler = FewStepSampler((1000, 500), renoise=0.6)
    found = denoise_block(wan, cache, noise, sampler, drawn(1))
    velocity, (_, sigma) = wan.denoise(noise, 1000.0, cache), sampler.sigmas
    mixed = 0.8 * noise + 0.6 * drawn(1)(1)
    x = (1 - sigma) * (noise - velocity) + sigma * mixed
    wanted = x - sigma * wan.denoise(x, 1000 * sigma, cache)
    assert torch.allclose(found, wanted, rtol=0, atol=1e-9)


@torch.no_grad()
def test_block_is_made_again_from_its_noise(wan):
    cache = begin(wan, 2)
    wan.commit(latents(2, 2), cache)
    noise = latents(2, 2, seed=7)
    first = denoise_block(wan, cache, noise, STEPS, drawn(1, 2))
    other = denoise_block(wan, cache, noise, STEPS, drawn(2, 2))
    assert torch.equal(denoise_block(wan, cache, noise, STEPS, drawn(1, 2)), first)
    assert (other - first).abs().max() > 1e-3


@torch.no_grad()
def test_commits_along_the_way(wan):
    clean, noise = latents(1, 4), latents(1, 2, seed=7)
    apart, folded = begin(wan), begin(wan)
    wan.commit(clean, apart)
    wanted = denoise_block(wan, apart, noise, STEPS, drawn(1))
    found = denoise_block(wan, folded, noise, STEPS, drawn(1), clean)
    assert torch.allclose(found, wanted, rtol=0, atol=1e-9)
    assert torch.allclose(folded.data, apart.data, rtol=0, atol=1e-9)
    assert folded.blocks == 2


@torch.no_grad()
def test_guidance(wan):
    """Of one step, the two rows' velocities by themselves."""
    text, nothing = rand(1, 4, 10, seed=3), torch.zeros(1, 4, 10, dtype=torch.float64)
    clean, noise = latents(1, 2), latents(1, 2, seed=7)
    both = wan.start(torch.cat([text, nothing]), *SIZE, 4)
    velocities = []
    for told in (text, nothing):
        cache = wan.start(told, *SIZE, 4)
        wan.commit(clean, cache)
        velocities.append(wan.denoise(noise, 1000.0, cache))
    sampler = FewStepSampler((1000,), guidance_scale=3.0)
    found = denoise_block(wan, both, noise, sampler, drawn(1), clean)
    wanted = noise - (velocities[1] + 3.0 * (velocities[0] - velocities[1]))
    assert torch.allclose(found, wanted, rtol=0, atol=1e-9)
    with pytest.raises(InputError, match="1 blocks need a cache of 2 rows each, not 1"):
        denoise_block(wan, begin(wan), noise, sampler, drawn(1))
    with pytest.raises(InputError, match="1 blocks need a cache of 1 rows each, not 2"):
        denoise_block(wan, both, noise, STEPS, drawn(1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(steps=()), "steps must fall from 1000"),
        (dict(steps=(900, 500)), "steps must fall from 1000"),
        (dict(steps=(1000, 500, 500)), "steps must fall from 1000"),
        (dict(steps=(1000, 0)), "stay above 0"),
        (dict(shift=0.0), "shift must be above 0"),
        (dict(guidance_scale=-1.0), "guidance_scale must be from 0 to 100"),
        (dict(renoise=1.5), "renoise must be from 0 to 1"),
    ],
)
def test_samplers_out_of_range(changes, message):
    with pytest.raises(InputError, match=message):
        FewStepSampler(**changes)
