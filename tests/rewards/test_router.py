"""A pipeline's own router as a reward of blocks."""

from __future__ import annotations

import pytest
import torch

from mmspec.models.wan.frame_router import FrameRouter
from mmspec.rewards.frames import FrameJudge
from mmspec.rewards.router import RouterReward
from mmspec.train.tokenizers import clip_tokenizer

PROMPT, OTHER = "a red circle moves right", "two blue squares move up"


@pytest.fixture(scope="module")
def words():
    return clip_tokenizer()


@pytest.fixture(scope="module")
def router(words):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = dict(text_dim=16, widths=(8, 16), blocks=3, frames=5)
        made = FrameRouter(len(words), **sizes).eval()
        for weight in (made.numbers, made.places):
            torch.nn.init.normal_(weight)
        return made


@pytest.fixture
def reward(router, words) -> RouterReward:
    return RouterReward(router, words)


def pictures(count: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=generator)


FRAMES, BEFORE = pictures(4), pictures(1, 2)[0]


def test_scores_are_the_networks(reward, router, words):
    scores = reward.score_block(PROMPT, FRAMES, BEFORE, 1)
    assert scores.dtype == torch.float32
    assert scores.shape == (4,)
    ids = words(PROMPT, return_tensors="pt").input_ids  # no padding: it must not matter
    frames, before = (x[None].float() / 127.5 - 1 for x in (FRAMES, BEFORE))
    with torch.no_grad():
        alone = router(frames, before, router.read(ids), 1)
        twice = router(
            frames.repeat(2, 1, 1, 1, 1),
            before.repeat(2, 1, 1, 1),
            torch.cat(
                [router.read(words(p, return_tensors="pt").input_ids) for p in (OTHER, PROMPT)]
            ),
            1,
        )
    assert torch.allclose(alone[0], scores, atol=1e-4)
    assert torch.allclose(twice[1], scores, atol=1e-4)  # clips do not depend on each other


def changed(reward, prompt=PROMPT, frames=FRAMES, before=BEFORE, number=1) -> list[bool]:
    """Which frames have another score."""
    wanted = reward.score_block(PROMPT, FRAMES, BEFORE, 1)
    found = reward.score_block(prompt, frames, before, number)
    return ((found - wanted).abs() > 1e-4).tolist()


def test_what_a_guess_sees(reward):
    """A frame, the one before it, the last before the block, the prompt, the block's number."""
    assert changed(reward) == [False] * 4
    assert changed(reward, prompt=OTHER) == [True] * 4
    assert changed(reward, before=pictures(1, 3)[0]) == [True] * 4
    assert changed(reward, before=None) == [True] * 4
    assert changed(reward, number=0) == [True] * 4
    third = FRAMES.clone()
    third[2] = pictures(1, 5)[0]
    assert changed(reward, frames=third) == [False, False, True, True]


def test_place_of_a_frame_matters(reward):
    same = BEFORE.expand(3, -1, -1, -1)
    scores = reward.score_block(PROMPT, same, BEFORE, 1).tolist()
    assert len({round(score, 4) for score in scores}) == 3


def test_clips_and_blocks_that_are_longer_than_in_training(reward):
    """Blocks count as the last that is told apart, and so do frames."""
    last, later = (reward.score_block(PROMPT, FRAMES, BEFORE, number) for number in (2, 300))
    assert torch.equal(last, later)
    same = BEFORE.expand(7, -1, -1, -1)
    scores = reward.score_block(PROMPT, same, BEFORE, 1)
    assert scores[4:].tolist() == pytest.approx([float(scores[4])] * 3, abs=1e-5)


def test_first_block_has_nothing_before_it(reward, router, words):
    ids = words(PROMPT, return_tensors="pt").input_ids
    with torch.no_grad():
        frames = FRAMES[None].float() / 127.5 - 1
        wanted = router(frames, torch.zeros(1, 3, 16, 16), router.read(ids), 0)
    assert torch.allclose(reward.score_block(PROMPT, FRAMES, None, 0), wanted[0], atol=1e-4)


def test_judge_gives_it_what_is_before_the_block(reward):
    """In 8 bits, as it is shown."""
    judge = FrameJudge(reward, [OTHER, PROMPT])
    frames, before = (x.float() / 127.5 - 1 for x in (FRAMES, BEFORE))
    found = judge(1, frames + 0.001, before - 0.001, 2)
    assert torch.equal(found.float(), reward.score_block(PROMPT, FRAMES, BEFORE, 2))
    first = judge(0, frames, None, 0)
    assert torch.equal(first.float(), reward.score_block(OTHER, FRAMES, None, 0))
    assert judge.failures == 0


def test_a_prompt_is_read_once(reward, router, monkeypatch):
    read, rows = router.read, []
    monkeypatch.setattr(router, "read", lambda ids: rows.append(len(ids)) or read(ids))
    for number, prompt in enumerate((PROMPT, OTHER, PROMPT)):
        reward.score_block(prompt, FRAMES, BEFORE, number)
    assert rows == [1, 1]


def test_saved_and_loaded(reward, router, words, tmp_path):
    router.save_pretrained(tmp_path)
    again = RouterReward(FrameRouter.from_pretrained(tmp_path).eval(), words)
    given = PROMPT, FRAMES, BEFORE, 1
    assert torch.allclose(again.score_block(*given), reward.score_block(*given), atol=1e-5)
