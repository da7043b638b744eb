"""MAR and Wan on rounded weights: what comes out is what the rounded layers say."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from mars import captioned_pipeline
from torch import nn
from wans import tiny_pipeline

from mmspec import SpecConfig
from mmspec.errors import InputError

PROMPTS = ["a photo of a red circle", "a photo of two blue stars"]


def seeds(*numbers: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(number) for number in numbers]


def mar_tokens(pipe, config, prompts=PROMPTS, seed=(1, 2)):
    pipe.enable_speculation(config)
    call = dict(num_iterations=5, diffusion_steps=6, output_type="latent")
    return pipe(list(prompts), generator=seeds(*seed), **call)


def wan_latents(pipe, config, prompts=PROMPTS, seed=(1, 2)):
    pipe.enable_speculation(config)
    call = dict(num_frames=21, num_inference_steps=2, output_type="latent")
    return pipe(list(prompts), generator=seeds(*seed), **call)


def halves(pipe, name: str) -> None:
    """Round the blocks of a component by hand, its diffusion head's too."""
    network = getattr(pipe, name)
    parts = [*network.blocks, *getattr(getattr(network, "head", None), "blocks", ())]
    last = getattr(getattr(network, "head", None), "final_layer", None)
    layers = [m for part in parts for m in part.modules() if isinstance(m, nn.Linear)]
    layers += [] if last is None or last.modulation is None else [last.modulation]
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(layer.weight.half().float())


MADE = {"mar": (captioned_pipeline, mar_tokens), "wan": (tiny_pipeline, wan_latents)}


@pytest.fixture(params=MADE)
def made(request):
    """A pipeline, and how it draws."""
    build, draw = MADE[request.param]
    return build(), draw


def output(result) -> torch.Tensor:
    return result.images if hasattr(result, "images") else result.frames


def test_float16_is_the_network_whose_weights_are_so(made):
    pipe, draw = made
    plain = output(draw(pipe, "plain"))
    result = draw(pipe, SpecConfig("plain", target_weights="float16"))
    assert result.stats.contract == "exact-rounded"
    rounded = output(result)
    assert not torch.equal(rounded, plain)
    assert torch.equal(output(draw(pipe, "plain")), plain)  # the weights stay the model's own
    by_hand = deepcopy(pipe)
    halves(by_hand, "transformer")
    scale = plain.abs().max()
    assert (rounded - output(draw(by_hand, "plain"))).abs().max() < 1e-4 * scale


@pytest.mark.parametrize("weights", ["float16", "int8"])
def test_a_row_depends_on_no_other(made, weights):
    pipe, draw = made
    config = SpecConfig("plain", target_weights=weights)
    both = output(draw(pipe, config))
    alone = output(draw(pipe, config, PROMPTS[1:], (2,)))
    assert (both[1:] - alone).abs().max() < 1e-3 * alone.abs().max()
    error = (both - output(draw(pipe, "plain"))).abs().max() / both.abs().max()
    assert 0 < error < 0.5


def test_a_rounded_drafter_is_the_drafter_that_is_so():
    pipe = captioned_pipeline()
    config = SpecConfig("drafter-only", draft_weights="float16")
    rounded = mar_tokens(pipe, config).images
    by_hand = deepcopy(pipe)
    halves(by_hand, "drafter")
    expected = mar_tokens(by_hand, "drafter-only").images
    assert (rounded - expected).abs().max() < 1e-4 * expected.abs().max()
    drafted = mar_tokens(pipe, SpecConfig("cspd", draft_weights="int8"))
    assert drafted.stats.contract == SpecConfig("cspd").resolve("continuous").contract
    assert sum(drafted.stats.drafted) > 0


def test_weights_that_can_not_be_rounded_are_refused():
    pipe = captioned_pipeline().to(torch.float64)
    with pytest.raises(InputError, match="float32 on the processor, and this one is in float64"):
        mar_tokens(pipe, SpecConfig("plain", target_weights="int8"))
    pipe = tiny_pipeline().to(torch.float64)
    with pytest.raises(InputError, match="float32 on the processor, and this one is in float64"):
        wan_latents(pipe, SpecConfig("plain", target_weights="int8"))
