"""Routing by the target's advantage: as the router says, what is counted, limits, the oracle."""

from __future__ import annotations

import json
import math

import pytest
import torch
from wans import tiny_pipeline

from mmspec import SpecConfig, VideoPipeline
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.models.wan.frame_router import FrameRouter
from mmspec.rewards.router import AdvantageReward

PROMPTS = ["a photo of a red circle", "two blue squares"]
HOW = dict(num_frames=45, num_inference_steps=2)
BLOCKS = 6


class DarkFrames(FrameRouter):
    """Takes a block for worse than the target's the darker it is; remembers what it was shown."""

    def forward(self, frames, before, prompts, number):
        self.shown = [*getattr(self, "shown", []), (frames, before, number)]
        return self.config.unit * (self.config.usual - frames.mean((2, 3, 4)))


class Brightness:
    """Judges a frame by its mean, whatever the prompt."""

    name = "brightness"
    asked = 0

    def score(self, prompts, images):
        self.asked += len(prompts)
        return images.float().mean((1, 2, 3))


@pytest.fixture(scope="module")
def pipe() -> VideoPipeline:
    made = tiny_pipeline()
    words = len(made.tokenizer)
    dark = DarkFrames(words, text_len=24, text_dim=16, widths=(8,), unit=20.0, usual=0.0).eval()
    dark.register_to_config(usual=usual_of(made))
    made.register_modules(advantage_router=dark)
    return made


def usual_of(made) -> float:
    """The mean brightness of drafts, in [-1, 1], so that guesses lie on both sides of 0.5."""
    made.enable_speculation(SpecConfig("drafter-only"))
    out = made(PROMPTS, generator=seeds(), output_type="pt", **HOW)
    made.disable_speculation()
    return float(out.frames[:, 5:].mean()) * 2 - 1


@pytest.fixture(autouse=True)
def plainly(pipe):
    pipe.reward = None
    pipe.disable_speculation()


def seeds() -> list[torch.Generator]:
    return [torch.Generator().manual_seed(number) for number in (5, 6)]


def made(pipe, method: str, **options):
    """A call's output and the blocks that it streamed."""
    blocks = []
    pipe.enable_speculation(SpecConfig(method, **options))
    call = dict(generator=seeds(), output_type="latent", **HOW)
    out = pipe(PROMPTS, callback_on_block=lambda _, block: blocks.append(block), **call)
    return out, blocks


def latents(pipe, method: str, prompt=PROMPTS, guidance=1.0, **options) -> torch.Tensor:
    pipe.enable_speculation(SpecConfig(method, **options))
    call = dict(generator=seeds(), output_type="latent", guidance_scale=guidance, **HOW)
    return pipe(prompt, **call).frames


def test_blocks_go_where_the_router_says(pipe):
    """It sees the drafted frames and the last one before, and its word decides, block by block."""
    router = pipe.advantage_router
    router.shown = []
    out, blocks = made(pipe, "arbitrage")
    assert {maker for clip in out.made_by for maker in clip} == {"target", "drafter"}
    assert len(router.shown) == 2 * (BLOCKS - 1)  # first blocks are forced
    for row in range(2):
        own = [block for block in blocks if block.row == row]
        assert own[0].made_by == "target"
        assert own[0].rewards == []
        for number in range(1, BLOCKS):
            frames, before, told = router.shown[2 * (number - 1) + row]
            logits = 20 * (router.config.usual - frames.mean((2, 3, 4)))
            guess = float(logits.double().mean().sigmoid())
            assert own[number].rewards == pytest.approx([guess] * 8, abs=1e-6)
            assert (own[number].made_by == "target") == (guess > 0.5)
            assert told == number
            last = own[number - 1].frames[-1]
            assert torch.allclose(before[0], last, atol=1 / 127)
            drafted = torch.allclose(frames[0], own[number].frames, atol=1 / 127)
            assert drafted == (own[number].made_by == "drafter")


def test_drafts_that_fall_are_counted(pipe):
    out, _ = made(pipe, "arbitrage")
    stats, made_by = out.stats, out.made_by
    drafts = [clip.count("drafter") for clip in made_by]
    assert stats.drafted == [BLOCKS - 1] * 2
    assert stats.accepted == drafts
    assert stats.emitted == [BLOCKS] * 2
    steps = HOW["num_inference_steps"]
    assert stats.calls == [steps * (BLOCKS - stood) for stood in drafts]
    assert stats.contract == "lossy"
    assert stats.drafted_share == sum(drafts) / (2 * BLOCKS)


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_limits(pipe, guidance):
    """With τ = 0 the target's clip, with τ = 1 the drafter's, to the last bit."""
    plain = latents(pipe, "plain", guidance=guidance)
    alone = latents(pipe, "drafter-only", guidance=guidance)
    for forced in (0, 1):
        how = dict(guidance=guidance, forced_blocks=forced)
        assert torch.equal(latents(pipe, "arbitrage", advantage_tau=0.0, **how), plain)
    how = dict(guidance=guidance, forced_blocks=0)
    assert torch.equal(latents(pipe, "arbitrage", advantage_tau=1.0, **how), alone)
    assert not torch.allclose(plain, alone, atol=1e-2)


def test_thresholds_ask_the_target_less_and_less(pipe):
    shares = [
        made(pipe, "arbitrage", advantage_tau=tau)[0].stats.drafted_share
        for tau in (0.0, 0.3, 0.7, 1.0)
    ]
    assert shares[0] == 0
    assert shares[-1] == (BLOCKS - 1) / BLOCKS
    assert shares == sorted(shares)


def test_clips_of_a_batch_do_not_depend_on_each_other(pipe):
    both = latents(pipe, "arbitrage")
    for row, prompt in enumerate(PROMPTS):
        call = dict(generator=seeds()[row], output_type="latent", **HOW)
        assert torch.equal(pipe(prompt, **call).frames[0], both[row])


def test_it_asks_no_reward_but_its_router(pipe):
    pipe.reward = Brightness()
    made(pipe, "arbitrage")
    assert pipe.reward.asked == 0
    made(pipe, "sdvg", tau=0.0)
    assert pipe.reward.asked == 2 * 8 * (BLOCKS - 1)


def test_a_guess_that_is_no_number_asks_the_target(pipe):
    other = VideoPipeline(**pipe.components)
    other.set_progress_bar_config(disable=True)
    other.register_modules(advantage_router=DarkFrames(len(pipe.tokenizer), usual=math.nan))
    out, _ = made(other, "arbitrage", advantage_tau=1.0)
    assert out.stats.unjudged == 2 * (BLOCKS - 1)
    assert out.stats.drafted_share == 0


def test_the_mean_over_frames_is_what_is_guessed(pipe):
    reward = AdvantageReward(pipe.advantage_router, pipe.tokenizer)
    frames = torch.randint(0, 256, (8, 3, 16, 24), dtype=torch.uint8)
    found = reward.score_block(PROMPTS[0], frames, None, 0)
    means = (frames / 127.5 - 1).mean((1, 2, 3))
    wanted = (20 * (pipe.advantage_router.config.usual - means)).mean().sigmoid()
    assert found.tolist() == pytest.approx([float(wanted)] * 8, abs=1e-5)


# --- the oracle -----------------------------------------------------------------------------------


def bright(blocks, row: int, number: int) -> float:
    """What `Brightness` gives a block that was streamed."""
    (block,) = (b for b in blocks if (b.row, b.number) == (row, number))
    pictures = (block.frames.float() / 2 + 0.5).clamp(0, 1) * 255
    return float(pictures.round().mean())


def test_an_oracle_keeps_the_better_block(pipe):
    """Its advantage is what both models' blocks score behind the same blocks."""
    pipe.reward = Brightness()
    _, plain = made(pipe, "plain")
    _, drafts = made(pipe, "sdvg", tau=-math.inf)
    out, blocks = made(pipe, "oracle-routing")
    assert {maker for clip in out.made_by for maker in clip} == {"target", "drafter"}
    for row in range(2):
        for block in (b for b in blocks if b.row == row and b.number):
            advantage = sum(block.rewards) / 8
            assert (block.made_by == "target") == (advantage > 0)
        gain = bright(plain, row, 1) - bright(drafts, row, 1)  # behind one and the same block
        first = next(b for b in blocks if (b.row, b.number) == (row, 1))
        assert sum(first.rewards) / 8 == pytest.approx(gain, abs=0.2)
        kept = max(bright(plain, row, 1), bright(drafts, row, 1))
        assert bright(blocks, row, 1) == pytest.approx(kept, abs=0.2)


def test_an_oracle_at_its_ends_is_either_model(pipe):
    """What it makes to compare leaves no trace in clips of the other model."""
    pipe.reward = Brightness()
    plain, drafts = latents(pipe, "plain"), latents(pipe, "sdvg", tau=-math.inf)
    assert torch.equal(latents(pipe, "oracle-routing", gain_tau=-math.inf), plain)
    found = latents(pipe, "oracle-routing", gain_tau=math.inf)
    assert torch.allclose(found, drafts, atol=1e-5)
    assert torch.equal(found[:, :4], drafts[:, :4])


@pytest.mark.parametrize("tau", [-math.inf, 0.0, math.inf])
def test_an_oracle_pays_for_both_models(pipe, tau):
    """Every block is the target's too, in its calls and in the seconds of making."""
    pipe.reward = Brightness()
    out, _ = made(pipe, "oracle-routing", gain_tau=tau)
    plain, _ = made(pipe, "plain")
    assert out.stats.calls == plain.stats.calls
    assert out.stats.drafted == [BLOCKS - 1] * 2
    assert out.stats.accepted == [clip.count("drafter") for clip in out.made_by]
    assert out.stats.parts["regenerate"] > 0
    assert pipe.reward.asked == 2 * 2 * 8 * (BLOCKS - 1)


def test_an_oracle_by_the_embedded_reward(pipe):
    """Who names none has one that comes with the package."""
    out, _ = made(pipe, "oracle-routing")
    assert out.stats.unjudged == 0
    assert all(len(block) == 8 for clip in out.rewards for block in clip[1:])


def test_a_reward_that_fails_asks_the_target(pipe):
    class Failing(Brightness):
        def score(self, prompts, images):
            raise RuntimeError("no weights")

    pipe.reward = Failing()
    assert torch.equal(latents(pipe, "oracle-routing", gain_tau=math.inf), latents(pipe, "plain"))


# --- what is refused, and the command -------------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "word"),
    [
        (dict(method="arbitrage", advantage_tau=1.5), "advantage_tau must be from 0 to 1, not 1.5"),
        (dict(method="arbitrage", advantage_tau=math.nan), "advantage_tau must be from 0 to 1"),
        (dict(method="arbitrage", tau=3.0), "tau is a setting of 'reward-threshold', and"),
        (dict(method="arbitrage", reward="clip_score"), "reward is a setting of"),
        (dict(method="oracle-routing", reward="router"), "can't say which of them is better"),
        (dict(method="oracle-routing", reward="clip_score"), "needs its weights"),
        (dict(method="oracle-routing", frame_rule="mean"), "frame_rule is a setting of"),
    ],
)
def test_wrong_configurations(pipe, knobs, word):
    with pytest.raises(InputError, match=word):
        pipe.enable_speculation(SpecConfig(**knobs))


def test_parts_that_are_missing_or_do_not_fit(pipe):
    without = VideoPipeline(**{**pipe.components, "advantage_router": None})
    with pytest.raises(InputError, match="needs the component 'advantage_router'"):
        without.enable_speculation(SpecConfig("arbitrage"))
    without.enable_speculation(SpecConfig("oracle-routing"))
    with pytest.raises(InputError, match="the advantage router knows 7 words, the tokenizer has"):
        VideoPipeline(**{**pipe.components, "advantage_router": FrameRouter(7, widths=(8,))})


def test_the_command(tmp_path, capfd):
    tiny_pipeline().save_pretrained(tmp_path / "model")
    words = ["video", PROMPTS[0], "--model", str(tmp_path / "model"), "-o", str(tmp_path / "out")]
    words += ["--steps", "1", "--blocks", "3", "--method", "arbitrage", "--compare", "--json"]
    assert main([*words, "--advantage-tau", "0"]) == 0
    told = json.loads(capfd.readouterr().out)["methods"]
    assert list(told) == ["plain", "arbitrage[advantage_tau=0]"]
    assert told["arbitrage[advantage_tau=0]"]["made_by"] == [["target"] * 3]
    assert main([*words, "--advantage-tau", "2"]) == 2
    assert "from 0 to 1, not 2" in capfd.readouterr().err
