"""The embedded video model as it is shipped: whole, cheap to draft, and following its prompts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from mmspec import SpecConfig, VideoPipeline
from mmspec.cli.main import main
from mmspec.models.wan.vae import decode_block, encode_block
from mmspec.models.wan.window import ContextWindow
from mmspec.train.tokenizers import clip_tokenizer
from mmspec.worlds.video_world.clip import render_clip, sample
from mmspec.worlds.video_world.judge import judge
from mmspec.worlds.video_world.vocabulary import KINDS, TIMING

PROMPT = "a red circle moves right"
BLOCKS = 12


@pytest.fixture(scope="module")
def pipe() -> VideoPipeline:
    pipe = VideoPipeline.from_pretrained()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def clips_of(pipe: VideoPipeline, prompts: list[str]) -> list[np.ndarray]:
    generators = [torch.Generator().manual_seed(i) for i in range(len(prompts))]
    out = pipe(prompts, generator=generators, output_type="np")
    return [(clip * 255).round().astype(np.uint8) for clip in out.frames]


def test_components(pipe):
    missing = {name for name, part in pipe.components.items() if part is None}
    assert missing <= {"advantage_router"}  # which `mmspec train` adds
    assert pipe.transformer.config.sample_frames == BLOCKS * TIMING.latents
    assert pipe.tokenizer.get_vocab() == clip_tokenizer().get_vocab()


def test_drafter_costs_a_sixth_at_most(pipe):
    """Multiplications a block: of all layers, as often as either model is called."""

    def cost(model) -> int:
        matrices = [weight for weight in model.blocks.parameters() if weight.ndim == 2]
        return model.config.sample_steps * sum(weight.numel() for weight in matrices)

    assert cost(pipe.drafter) <= cost(pipe.transformer) / 6


@pytest.mark.slow
@torch.inference_mode()
def test_autoencoder_keeps_what_the_judge_sees(pipe):
    """The ceiling of every quality figure: true clips, encoded and decoded, are judged."""
    rng, scores = np.random.default_rng(5), []
    for kind in KINDS:
        prompt, clip = sample(rng, kind, "held_out")
        frames = torch.from_numpy(render_clip(clip, TIMING.frames(BLOCKS), 64))
        pixels = frames[None].permute(0, 1, 4, 2, 3).float() / 127.5 - 1
        decoded, _ = decode_block(pipe.vae, encode_block(pipe.vae, pixels)[0])
        shown = ((decoded[0].clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1)
        scores.append(judge(shown.numpy(), prompt).score)
    assert np.mean(scores) >= 0.85


@pytest.mark.slow
def test_clips_follow_their_prompts(pipe):
    """Judged by the prompts that they were made of, and by others."""
    rng = np.random.default_rng(4)
    asked = [sample(rng, kind, "held_out")[0] for kind in KINDS]
    clips = clips_of(pipe, [prompt.prompt for prompt in asked])

    def score(shift: int) -> float:
        told = asked[shift:] + asked[:shift]
        return float(np.mean([judge(c, p).score for c, p in zip(clips, told, strict=True)]))

    assert score(0) >= 0.25
    assert score(0) >= 2 * score(1)


@pytest.mark.slow
def test_usual_threshold_leaves_blocks_to_both(pipe):
    pipe.enable_speculation(SpecConfig("sdvg"))
    out = pipe([PROMPT] * 3, generator=[torch.Generator().manual_seed(i) for i in range(3)])
    pipe.disable_speculation()
    made = [maker for clip in out.made_by for maker in clip]
    assert {clip[0] for clip in out.made_by} == {"target"}  # the forced first block
    assert 0.2 <= made.count("drafter") / len(made) <= 0.95


def test_long_clip_streams(pipe):
    held = []
    pipe.enable_speculation(SpecConfig("sdvg"))
    pipe(
        PROMPT,
        num_frames=TIMING.frames(2 * BLOCKS),
        generator=torch.Generator().manual_seed(0),
        window=ContextWindow(4, sink=1),
        output_type="none",
        callback_on_block=lambda pipe, block: held.append(pipe.nbytes),
    )
    pipe.disable_speculation()
    assert len(held) == 2 * BLOCKS
    assert held[-1] == held[BLOCKS]


@pytest.mark.slow
def test_command(tmp_path, capsys):
    assert main(["video", PROMPT, "--compare", "--blocks", "4", "-o", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "stats.json").read_text())["methods"]
    assert list(record) == ["plain", "sdvg"]
    assert any(path.suffix == ".gif" for path in tmp_path.iterdir())
    assert "clips and stats.json are in" in capsys.readouterr().out
