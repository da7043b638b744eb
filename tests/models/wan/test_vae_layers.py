"""The quick layers of the video autoencoder are diffusers' own, and are gone afterwards."""

from __future__ import annotations

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanRMS_norm
from torch import nn
from torch.profiler import ProfilerActivity, profile
from wans import rand, tiny_vae

from mmspec.models.wan.vae import _normalized, decode_block, quick_layers


def patched(part: nn.Module) -> int:
    names = ("forward", "_conv_forward")
    return sum(name in vars(module) for module in part.modules() for name in names)


@pytest.mark.parametrize("learned", [False, True])
def test_outputs_and_gradients_are_the_library_s(learned):
    """As near as its own are to those of twice the precision."""
    vae = tiny_vae().float()
    latents = rand(1, 3, 4, 4, 4).float()
    found = []
    for quick, precision in ((False, torch.float64), (False, torch.float32), (True, torch.float32)):
        vae.to(precision)
        given = latents.to(precision).requires_grad_(learned)
        with torch.set_grad_enabled(learned):
            if quick:
                with quick_layers(vae.decoder):
                    assert patched(vae.decoder) > 0
                    out = vae.decode(given).sample
            else:
                out = vae.decode(given).sample
        if learned:
            out.square().sum().backward()
        found.append((out.detach(), given.grad))
    (truth, slope), (own, own_slope), (out, quick_slope) = found
    assert patched(vae) == 0
    assert truth.abs().max() > 0.1
    assert far(own, truth) < 1e-4
    assert far(out, truth) < 4 * far(own, truth)
    if learned:
        assert far(quick_slope, slope) < 4 * far(own_slope, slope)


def far(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


@pytest.mark.parametrize("to", [torch.float64, torch.bfloat16, "meta"])
def test_elsewhere_the_layers_are_the_library_s(to):
    """In other precision, or on another device, where what is quick here takes longer."""
    vae = tiny_vae().float().to(to)
    with torch.no_grad(), quick_layers(vae):
        assert patched(vae) == 0


@torch.no_grad()
def test_a_norm_is_exact():
    """The library's own formula, in twice the precision."""
    norms = [m for m in tiny_vae().double().decoder.modules() if isinstance(m, WanRMS_norm)]
    for norm in norms:
        x = rand(2, *norm.gamma.shape[:1], *[3] * (norm.gamma.ndim - 1)).double()
        assert torch.allclose(_normalized(norm, x), norm(x), rtol=0, atol=1e-12)
    assert norms


def test_channels_of_zeros_stay_zeros():
    vae = tiny_vae().float()
    norms = (m for m in vae.decoder.modules() if isinstance(m, WanRMS_norm))
    norm = next(m for m in norms if m.gamma.ndim == 4)
    with torch.no_grad(), quick_layers(vae.decoder):
        assert "forward" in vars(norm)
        assert norm(torch.zeros(1, len(norm.gamma), 2, 3, 3)).eq(0).all()


def test_an_error_leaves_the_layers_as_they_were():
    vae = tiny_vae().float()
    with pytest.raises(KeyError), quick_layers(vae):
        raise KeyError
    assert patched(vae) == 0


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch lacks oneDNN")
@torch.no_grad()
def test_decoding_a_block_takes_no_slow_convolution():
    """Which PyTorch itself would choose for one small clip."""
    vae = tiny_vae().float()
    latents = rand(1, 2, 3, 2, 2).float()
    _, state = decode_block(vae, latents)

    def slow(run) -> bool:
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            run()
        return any("slow_conv3d" in event.key for event in seen.key_averages())

    assert slow(lambda: vae.decode(latents.transpose(1, 2)))
    assert not slow(lambda: decode_block(vae, latents, state))
