"""The embedded model of continuous tokens as it is shipped: whole, cheap to draft, and drawing."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from mmspec import ContinuousImagePipeline, SpecConfig
from mmspec.cli.main import main
from mmspec.models.mar.autoencoder import decode_tokens, posterior, tokens_of
from mmspec.models.mar.transformer import MarTransformer
from mmspec.train.tokenizers import caption_tokenizer
from mmspec.worlds.shapes import TASKS, render, sample
from mmspec.worlds.shapes.detector import detect
from mmspec.worlds.shapes.scoring import score_prompt

PROMPT = "a photo of a red circle left of a blue square"
FEW = {"num_iterations": 16}


@pytest.fixture(scope="module")
def pipe() -> ContinuousImagePipeline:
    pipe = ContinuousImagePipeline.from_pretrained()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_components(pipe):
    assert all(part is not None for part in pipe.components.values())
    assert (pipe.transformer.length, pipe.default_size) == (64, 64)
    assert pipe.tokenizer.get_vocab() == caption_tokenizer().get_vocab()


def test_drafter_costs_a_third_at_most(pipe):
    """Multiplications a token, of the backbone and of the head's calls, which are many."""

    def cost(network: nn.Module) -> int:
        return sum(weight.numel() for weight in network.parameters() if weight.ndim == 2)

    def backbone(network: MarTransformer) -> int:
        return cost(network) - cost(network.head)

    assert backbone(pipe.drafter) <= backbone(pipe.transformer) / 3
    assert cost(pipe.drafter.head) <= cost(pipe.transformer.head) / 3


@torch.inference_mode()
def test_autoencoder_keeps_what_the_detector_sees(pipe):
    """The ceiling of every quality figure: held-out scenes, encoded and decoded, are judged."""
    rng = np.random.default_rng(7)
    prompts, scenes = zip(*(sample(rng, TASKS[i % 6], "held_out") for i in range(60)), strict=True)
    pixels = torch.from_numpy(np.stack([render(scene, 64) for scene in scenes]))
    pixels = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1
    tokens = tokens_of(pipe.vae, posterior(pipe.vae, pixels).mean)
    decoded = decode_tokens(pipe.vae, tokens)
    pictures = ((decoded.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()
    right = [
        score_prompt(prompt.metadata(), detect(picture))[0]
        for prompt, picture in zip(prompts, pictures, strict=True)
    ]
    assert np.mean(right) >= 0.85


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["reflection", pytest.param("gamma-maximal", marks=pytest.mark.slow)]
)
def test_exact_methods_call_the_head_half_as_often(pipe, method):
    pipe.disable_speculation()
    plain = pipe(PROMPT, **FEW, generator=torch.Generator().manual_seed(0)).stats
    pipe.enable_speculation(SpecConfig(method))
    stats = pipe(PROMPT, **FEW, generator=torch.Generator().manual_seed(0)).stats
    pipe.disable_speculation()
    assert plain.head_calls == 16 * 100
    assert stats.head_calls <= plain.head_calls / 2
    assert stats.backbone_calls == plain.backbone_calls == 16


@pytest.mark.slow
def test_pictures_follow_their_captions(pipe):
    """One object in the colour that the caption names, which a picture drawn blindly rarely has."""
    rng = np.random.default_rng(3)
    prompts = [sample(rng, "colors", "held_out")[0] for _ in range(12)]
    generators = [torch.Generator().manual_seed(i) for i in range(12)]
    told = [p.prompt for p in prompts]
    images = pipe(told, **FEW, guidance_scale=5.0, generator=generators).images
    found = [detect(np.asarray(image)) for image in images]

    def right(shift: int) -> float:
        pairs = zip(prompts[shift:] + prompts[:shift], found, strict=True)
        return float(np.mean([score_prompt(p.metadata(), seen)[0] for p, seen in pairs]))

    assert right(0) >= 0.5
    assert right(0) >= 2 * right(1)  # the pictures of other captions


@pytest.mark.slow
def test_command(tmp_path, capsys):
    command = ["generate", PROMPT, "--model", "embedded-mar", "--iterations", "8", "--compare"]
    assert main([*command, "-n", "1", "-o", str(tmp_path)]) == 0
    files = ["plain-0.png", "reflection-0.png", "side-by-side.png", "stats.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert Image.open(tmp_path / "reflection-0.png").size == (64, 64)
    methods = json.loads((tmp_path / "stats.json").read_text())["methods"]
    assert methods["reflection"]["contract"] == "exact"
    assert methods["reflection"]["head_calls"] < methods["plain"]["head_calls"] / 2
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:3]] == list(methods)
