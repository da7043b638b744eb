"""The embedded image model as it is shipped: whole, and drawing."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from grids import GREEDY
from PIL import Image, ImageFilter

from mmspec import ImagePipeline, SpecConfig
from mmspec.cli.main import main
from mmspec.eval.metrics.frechet import FRECHET_SHAPES_CLIP
from mmspec.models.embedded import MODELS
from mmspec.models.llamagen.transformer import LlamaGenTransformer
from mmspec.rewards.networks.clip import ShapesCLIP
from mmspec.train.clip import _distinct_pairs
from mmspec.train.tokenizers import caption_tokenizer
from mmspec.worlds.shapes import TASKS, render, sample
from mmspec.worlds.shapes.detector import detect
from mmspec.worlds.shapes.scoring import score_prompt

MISSING = {"row_drafter", "dflash", "judge"}  # none of these ships
PROMPT = "a photo of a red circle left of a blue square"


@pytest.fixture(scope="module")
def pipe() -> ImagePipeline:
    pipe = ImagePipeline.from_pretrained()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_components(pipe):
    assert {name for name, part in pipe.components.items() if part is None} == MISSING
    assert (pipe.transformer.grid, pipe.sibling.grid, pipe.drafter.grid) == (16, 8, 16)
    assert pipe.default_size == 128
    assert pipe.vq_model.config.codebook_size == pipe.transformer.config.vocab_size
    assert pipe.tokenizer.get_vocab() == caption_tokenizer().get_vocab()


def test_drafter_costs_an_eighth_at_most(pipe):
    """Multiplications a token: every matrix behind the embeddings."""

    def cost(network: LlamaGenTransformer) -> int:
        weights = [*network.layers.parameters(), network.output.weight]
        return sum(weight.numel() for weight in weights if weight.ndim == 2)

    assert cost(pipe.drafter) <= cost(pipe.transformer) / 8


def test_draws(pipe):
    large = pipe([PROMPT, "a photo of three stars"], generator=torch.Generator().manual_seed(0))
    assert [image.size for image in large.images] == [(128, 128)] * 2
    assert all(np.asarray(image).std() > 5 for image in large.images)
    assert pipe(PROMPT, height=64).images[0].size == (64, 64)


@pytest.mark.slow
def test_greedy_methods_agree():
    """In small pictures, but for heads that know one size alone."""
    pipe = ImagePipeline.from_pretrained(dtype=torch.float64)
    pipe.set_progress_bar_config(disable=True)
    plain, calls = {}, {}
    for method in GREEDY:
        config = SpecConfig(method).resolve("image")
        if config.rounds or MISSING & {*config.needs}:
            continue  # weights are rounded in float32 alone, and no such drafter ships
        side = 128 if {"spatial", "eagle"} & {*config.needs} else 64
        how = {"height": side, "temperature": 0, "output_type": "tokens"}
        if side not in plain:
            pipe.disable_speculation()
            plain[side] = pipe([PROMPT, "a photo of a green heart"], **how).images
            assert len(plain[side].unique()) > 10
        pipe.enable_speculation(SpecConfig(method=method))
        out = pipe([PROMPT, "a photo of a green heart"], **how)
        assert torch.equal(out.images, plain[side])
        calls[method] = out.stats.nfe / plain[side].shape[1]
    # the target was not trained to leave early: greedily nothing of its first layers may stand
    assert calls.pop("early-exit") <= 1
    assert calls.pop("plain") == 1 > max(calls.values())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["specqd", "ml-specqd"])
def test_rounded_weights_foresee_the_target(pipe, method):
    pipe.enable_speculation(SpecConfig(method))
    out = pipe(PROMPT, generator=torch.Generator().manual_seed(0), output_type="tokens")
    pipe.disable_speculation()
    assert out.stats.mean_acceptance_length >= 3


def test_example_command(tmp_path, capsys):
    command = ["generate", PROMPT, "--method", "sjd", "--compare", "-n", "1", "-o", str(tmp_path)]
    assert main(command) == 0
    files = ["plain-0.png", "side-by-side.png", "sjd-0.png", "stats.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert Image.open(tmp_path / "sjd-0.png").size == (128, 128)
    methods = json.loads((tmp_path / "stats.json").read_text())["methods"]
    assert methods["plain"]["nfe_per_sample"] == 256
    assert methods["sjd"]["contract"] == "exact"
    assert methods["sjd"]["nfe_per_sample"] < 256 / 1.5
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:3]] == list(methods)


def test_listed(capsys):
    assert main(["ls", "models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["embedded-image"].endswith("image")


@torch.inference_mode()
def test_tokenizer_keeps_what_the_detector_sees(pipe):
    """The ceiling of every quality figure: held-out scenes, encoded and decoded, are judged."""
    rng = np.random.default_rng(7)
    prompts, scenes = zip(*(sample(rng, TASKS[i % 6], "held_out") for i in range(60)), strict=True)
    pixels = torch.from_numpy(np.stack([render(scene, 128) for scene in scenes]))
    pixels = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1
    decoded = pipe.vq_model.decode(pipe.vq_model.encode(pixels), 16, 16)
    pictures = ((decoded.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()
    right = [
        score_prompt(prompt.metadata(), detect(picture))[0]
        for prompt, picture in zip(prompts, pictures, strict=True)
    ]
    assert np.mean(right) >= 0.90


# --- the embedded CLIP ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clip() -> ShapesCLIP:
    return ShapesCLIP.from_pretrained()


def test_clip_tells_held_out_captions_apart(clip):
    """What its card says, on other scenes than the card's: 100 captions that are never seen."""
    rng = np.random.default_rng(11)
    pairs = _distinct_pairs(rng, 100)
    pictures = pairs.pictures.permute(0, 3, 1, 2)
    image, text = clip.image_features(pictures), clip.text_features(pairs.captions)
    likeness, own = image @ text.T, torch.arange(100)
    assert (likeness.argmax(1) == own).float().mean() >= 0.95
    assert (likeness.argmax(0) == own).float().mean() >= 0.95
    nearly = (image * clip.text_features(pairs.foils)).sum(-1)
    assert (likeness.diagonal() > nearly).float().mean() >= 0.85
    card = json.loads((MODELS / "clip" / "training.json").read_text())
    figures = card["held_out"]
    assert figures["caption of a picture among 100"] >= 0.95


@pytest.mark.slow
def test_clip_prefers_pictures_that_are_right(clip, pipe):
    """On pictures of the model too: those that the detector calls right score higher."""
    rng = np.random.default_rng(12)
    prompts = [sample(rng, "color_attr", "train")[0] for _ in range(24)]
    generators = [torch.Generator().manual_seed(i) for i in range(24)]
    images = pipe([p.prompt for p in prompts], generator=generators).images
    right = [
        score_prompt(p.metadata(), detect(np.asarray(i)))[0]
        for p, i in zip(prompts, images, strict=True)
    ]
    scores = clip.similarity([p.prompt for p in prompts], images)
    right = torch.tensor(right)
    assert 0 < right.sum() < 24
    assert scores[right].mean() > scores[~right].mean()


@pytest.mark.slow
def test_features_move_away_as_pictures_get_worse(clip):
    rng = np.random.default_rng(13)
    scenes = [sample(rng, TASKS[i % 6], "held_out")[1] for i in range(480)]
    pictures = np.stack([render(scene, 128) for scene in scenes])
    distance = FRECHET_SHAPES_CLIP.to_reference(
        clip.features(_batch(pictures[:240])).double().numpy()
    )
    found = []
    for blur in (0, 3, 6):
        worn = [
            np.asarray(Image.fromarray(p).filter(ImageFilter.GaussianBlur(blur)))
            for p in pictures[240:]
        ]
        found.append(distance(clip.features(_batch(np.stack(worn))).numpy()))
    assert found == sorted(found)
    assert found[-1] > 2 * found[0]


def _batch(pictures: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pictures).permute(0, 3, 1, 2)
