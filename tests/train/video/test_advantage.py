"""The advantage router's recipe: Δ of blocks as the judge sees them, balanced classes, figures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from mmspec.models.wan.frame_router import FrameRouter
from mmspec.models.wan.vae import to_bytes
from mmspec.train.base import BaseRecipe
from mmspec.train.routing import balanced_loss, gained_share, rank_correlation, wasted_share
from mmspec.train.tokenizers import clip_tokenizer
from mmspec.train.trainer import TrainConfig
from mmspec.train.video.advantage import VideoAdvantageRecipe
from mmspec.train.video.router import Pairs
from mmspec.worlds.video_world.clip import render_clip, sample_clip
from mmspec.worlds.video_world.judge import judge
from mmspec.worlds.video_world.prompts import ClipPrompt
from mmspec.worlds.video_world.vocabulary import TIMING

BLOCKS = 4


def prompt_of(color: str, motion: str) -> ClipPrompt:
    clause = {"class": "circle", "count": 1, "color": color, "motion": motion}
    return ClipPrompt(f"a {color} circle moves {motion}", "move", [clause])


def clip(prompt: ClipPrompt) -> torch.Tensor:
    """A rendered clip `[T, 3, H, W]` in [-1, 1]; of one seed clips begin alike."""
    frames = render_clip(sample_clip(np.random.default_rng(3), prompt), TIMING.frames(BLOCKS))
    return torch.from_numpy(frames).movedim(-1, 1).float() / 127.5 - 1


def scripted(drafted, own, stands):
    """A recipe whose two models make the blocks of these clips, each `[T, 3, H, W]`."""
    recipe = object.__new__(VideoAdvantageRecipe)

    def pairs(captions, rng):
        for number in range(BLOCKS):
            span = TIMING.span(number)
            both = [
                torch.stack([each[span.start : span.stop] for each in of]) for of in (drafted, own)
            ]
            goes_on = torch.tensor([row[number] for row in stands])
            yield Pairs(number, torch.zeros_like(both[0][:, 0]), *both, goes_on)

    recipe.pairs = pairs
    return recipe


RED, BLUE = prompt_of("red", "right"), prompt_of("blue", "right")
UP = prompt_of("red", "up")


@pytest.mark.slow
def test_advantage_is_what_the_judge_sees_in_either_block():
    """Behind the blocks that stood, whoever made them; by the judge of whole clips."""
    right, wrong, astray = clip(RED), clip(BLUE), clip(UP)
    stands = [[False, True, False, True], [True, True, False, False], [False] * 4]
    drafted, own = [wrong, right, right], [right, wrong, astray]
    found = list(scripted(drafted, own, stands).drafts([RED] * 3, np.random.default_rng(0)))
    assert [block.number for block in found] == [*range(BLOCKS)]
    for row in range(3):
        past = right[:0]
        for block in found:
            span = TIMING.span(block.number)
            both = [of[row][span.start : span.stop] for of in (drafted, own)]
            assert torch.equal(block.frames[row], to_bytes(both[0]))
            scores = [
                judge(to_bytes(torch.cat([past, new])).movedim(1, -1).numpy(), RED).blocks[-1]
                for new in both
            ]
            assert float(block.worth[row, 0]) == pytest.approx(scores[1] - scores[0], abs=1e-6)
            past = torch.cat([past, both[not stands[row][block.number]]])
    gains = torch.cat([block.worth for block in found], dim=1)
    assert bool((gains[0] > 0.4).all())  # the target's colour is right
    assert bool((gains[1] < -0.4).all())  # the draft's is
    assert bool((gains[2, 1:] < -0.1).all())  # and its motion


def test_where_both_fail_nothing_is_won():
    """However far apart the two are: what a router of nearness would have made again."""
    wrong, astray = clip(BLUE), clip(prompt_of("green", "up"))
    found = scripted([wrong], [astray], [[False] * 4]).drafts([RED], np.random.default_rng(0))
    for block in found:
        assert float(block.worth) == 0
        assert (block.frames[0].float() - to_bytes(astray)[0].float()).abs().mean() > 5


def test_classes_count_alike():
    logits = torch.tensor([0.3, -1.0, 2.0, 0.5, -0.2], dtype=torch.float64, requires_grad=True)
    better = torch.tensor([True, False, False, False, False])
    each = [np.log1p(np.exp(-x if y else x)) for x, y in zip(logits.tolist(), better, strict=True)]
    loss = balanced_loss(logits, better)
    assert float(loss.detach()) == pytest.approx((each[0] + np.mean(each[1:])) / 2)
    repeated = balanced_loss(logits.repeat(2)[:9], torch.tensor([True, *[False] * 4] * 2)[:9])
    assert float(repeated.detach()) == pytest.approx(
        (each[0] + np.mean([*each[1:], *each[1:4]])) / 2
    )
    for alone in (better[:1], better[1:]):  # a batch of one class
        own = logits[:1] if bool(alone[0]) else logits[1:]
        assert torch.isfinite(balanced_loss(own, alone))
    constant = torch.full((5,), 0.0, dtype=torch.float64, requires_grad=True)
    balanced_loss(constant, better).backward()
    assert float(constant.grad.sum()) == pytest.approx(0)  # at 0.5 neither class pulls harder


def test_loss_is_of_the_mean_over_frames():
    recipe = object.__new__(VideoAdvantageRecipe)
    guesses = [torch.randn(2, 9), torch.randn(2, 12)]
    worth = torch.tensor([[0.5, 0.0], [-0.5, 0.25]])
    loss, told = recipe.loss_of(guesses, worth)
    logits = torch.tensor([float(g[row].mean()) for row in range(2) for g in guesses])
    wanted = balanced_loss(logits, torch.tensor([True, False, False, True]))
    assert float(loss) == pytest.approx(float(wanted), abs=1e-6)
    assert told == {"advantage": 0.0625, "better": 0.5}


def test_ranks_are_those_of_scipy():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=40), rng.integers(-2, 3, 40)  # with ties
    found = rank_correlation(*(torch.from_numpy(x) for x in (one, other)))
    assert found == pytest.approx(spearmanr(one, other).statistic)
    assert rank_correlation(torch.arange(4.0), torch.zeros(4)) == 0
    many = torch.arange(200_000.0)  # whose pairs would take 300 GB
    assert rank_correlation(many, -many) == pytest.approx(-1)


def test_what_asking_is_worth():
    gain = torch.tensor([0.5, 0.0, -0.2, 0.3])
    asked = torch.tensor([True, True, True, False])
    assert wasted_share(asked, gain) == pytest.approx(2 / 3)
    assert wasted_share(~asked, gain) == wasted_share(gain > 9, gain) == 0
    assert gained_share(gain, gain) == 1
    assert gained_share(torch.tensor([4.0, 3.0, 2.0, 1.0]), gain) == pytest.approx(0.5 / 0.8)
    assert gained_share(gain, -gain.abs()) == 0


def test_the_weights_that_rank_best_are_kept(tmp_path, monkeypatch):
    """Whatever comes after them."""
    recipe = scripted([], [], [])
    recipe.config, recipe.pipeline, recipe.tokenizer = TrainConfig(tmp_path, 4, 4), tmp_path, None
    model, gain, shipped = torch.nn.Linear(1, 1, bias=False), torch.arange(8.0) - 3, {}
    for sign in (0.5, 1.0, -1.0):  # of what it guesses, by its one weight
        torch.nn.init.constant_(model.weight, sign)
        guess = gain.sign() if sign == 0.5 else sign * gain
        recipe.held_out = lambda _, of_block, guess=guess: (guess, gain)
        last = recipe.evaluate(model)
    monkeypatch.setattr(
        BaseRecipe, "export", lambda self, model, record: shipped.update(record, model=model)
    )
    assert last["held_out_rank_correlation"] == pytest.approx(-1)
    recipe.export(model, {"held_out": last})
    assert shipped["held_out"]["held_out_rank_correlation"] == pytest.approx(1)
    assert float(shipped["model"].weight.detach()) == 1.0


def test_a_router_learns_which_drafts_are_worse(tmp_path):
    """End to end on scripted models: the drafter's colour is wrong in half of the clips."""
    words = clip_tokenizer()
    recipe = scripted([clip(BLUE), clip(RED)], [clip(RED)] * 2, [[False] * 4, [True] * 4])
    recipe.config, recipe.tokenizer = TrainConfig(tmp_path, 4, 2), words
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {**VideoAdvantageRecipe.sizes, "widths": (8, 8), "dropout": 0.0}
        recipe.model = FrameRouter(vocab_size=len(words), **sizes)
    prompts, captions = [RED] * 2, [RED.prompt] * 2
    drafts = list(recipe.drafts(prompts, np.random.default_rng(0)))
    worth = torch.cat([block.worth for block in drafts], dim=1)
    optimizer = torch.optim.Adam(recipe.model.parameters(), 1e-2)
    for _ in range(30):
        loss, told = recipe.loss_of(recipe._guess(recipe.model, captions, drafts), worth)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert told["better"] == 0.5
    assert float(loss.detach()) < 0.1
    recipe.held_out_rng = lambda: np.random.default_rng(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmspec.train.video.router.draw_prompts", lambda *a, **k: prompts)
        patch.setattr("mmspec.train.video.router.JUDGED", 1)
        figures = recipe.evaluate(recipe.model.eval())
    assert figures["held_out_wasted_by_chance"] == 0.5
    assert figures["held_out_wasted_share"] == 0
    assert figures["held_out_gained_share"] == pytest.approx(1, abs=0.01)
    assert figures["held_out_rank_correlation"] > 0.7
