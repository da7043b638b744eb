"""The judge of clips: true ones score near 1, those with one fact wrong clearly less.

All of it at 64 px, from pixels: a false caption of a true clip, or a clip with a fault.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import pytest

from mmspec.worlds.shapes import COLORS, SHAPES
from mmspec.worlds.video_world.actor import View
from mmspec.worlds.video_world.clip import Clip, render_clip, sample
from mmspec.worlds.video_world.judge import judge, judge_views
from mmspec.worlds.video_world.prompts import ClipPrompt, mirrored
from mmspec.worlds.video_world.vocabulary import BOUNCES, KINDS, MOVES, OPPOSITE, PASSES, Timing

TIMING = Timing()
EACH = 10  # clips of a kind, half of them held out
SPOILT = 10  # of them
Views = list[View]


@dataclass(frozen=True)
class Case:
    """A few blocks of a clip, and what the detector sees in them."""

    prompt: ClipPrompt
    clip: Clip
    frames: range
    views: Views

    @cached_property
    def true(self):
        return self.score()

    def score(self, include=None, views=None):
        prompt = self.prompt if include is None else replace(self.prompt, include=include)
        return judge_views(views or self.views, prompt, self.frames.start)


def window(rng, prompt: ClipPrompt, clip: Clip) -> range:
    """What the prompt is about: all up to the first pass, or the turn, or any two blocks."""
    block = int(rng.integers(1, 12))
    if prompt.tag in PASSES:
        axis = int(prompt.include[1]["motion"] in ("up", "down"))
        centres = np.array([[(i.x, i.y)[axis] for i in clip.items(t)] for t in range(141)])
        passing = int(np.flatnonzero(np.abs(np.diff(centres)) < 0.03)[0])
        return range(TIMING.span(max(1, TIMING.block_of(passing + 6))).stop)
    if "turns" in prompt.include[0]:
        block = TIMING.block_of(prompt.include[0]["cue"])
    return range(TIMING.span(block - 1).start, TIMING.span(block).stop)


class Cases(dict[str, list[Case]]):
    """Clips by kind, drawn where they are first asked for."""

    def __missing__(self, kind: str) -> list[Case]:
        rng, drawn = np.random.default_rng([41, KINDS.index(kind)]), []
        for i in range(EACH):
            prompt, clip = sample(rng, kind, ("train", "held_out")[i % 2])
            frames = window(rng, prompt, clip)
            views = [View.of(frame) for frame in render_clip(clip, frames)]
            drawn.append(Case(prompt, clip, frames, views))
        self[kind] = drawn
        return drawn


@pytest.fixture(scope="module")
def cases() -> Cases:
    return Cases()


@pytest.mark.parametrize("kind", KINDS)
def test_true_clips(cases, kind):
    scores = [case.true for case in cases[kind]]
    assert np.mean([score.score for score in scores]) >= 0.97
    assert min(score.score for score in scores) >= 0.7
    if kind in PASSES:  # the window shows the pass
        assert np.mean([np.isfinite(score.order).any() for score in scores]) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_whole_true_clips(kind):
    prompt, clip = sample(np.random.default_rng([43, KINDS.index(kind)]), kind, "held_out")
    assert judge(render_clip(clip, range(TIMING.frames(12))), prompt).score >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_clips_in_a_mirror(cases, kind):
    """They are what `mirrored` says, and no more what their prompt says if that is sideways.

    But for crescents: one in a mirror is none of this world's.
    """
    shown = [c for c in cases[kind] if all(x["class"] != "crescent" for x in c.prompt.include)][:6]
    for case in shown:
        turned, frames = mirrored(case.prompt), render_clip(case.clip, case.frames)[:, :, ::-1]
        views = [View.of(frame) for frame in np.ascontiguousarray(frames)]
        score = judge_views(views, turned, case.frames.start).score
        assert score >= case.true.score - 0.1
        assert mirrored(turned) == case.prompt
        sideways = any(clause["motion"] in ("left", "right") for clause in case.prompt.include)
        assert (turned != case.prompt) == sideways
        if sideways:
            assert case.score(views=views).score < score - 0.3


# --- faults: a false caption of a true clip, or what is seen of a faulty one ----------------------


def other(rng, options, *taken: str) -> str:
    left = [name for name in options if name not in taken]
    return left[int(rng.integers(len(left)))]


def colour(rng, case: Case):
    include = deepcopy(case.prompt.include)
    clause = include[int(rng.integers(len(include)))]
    key = "turns" if "turns" in clause and rng.random() < 0.5 else "color"
    taken = [c[k] for c in include for k in ("color", "turns") if k in c]
    clause[key] = other(rng, COLORS, *taken)
    return include, None


def shape(rng, case: Case):
    include = deepcopy(case.prompt.include)
    clause = include[int(rng.integers(len(include)))]
    clause["class"] = other(rng, SHAPES, *(c["class"] for c in include))
    return include, None


def swapped(rng, case: Case):
    include = deepcopy(case.prompt.include)
    include[0]["class"], include[1]["class"] = include[1]["class"], include[0]["class"]
    return include, None


def count(rng, case: Case):
    include = deepcopy(case.prompt.include)
    include[0]["count"] = 5 - include[0]["count"]
    return include, None


def direction(rng, case: Case):
    include = deepcopy(case.prompt.include)
    clause = include[-1]
    if case.prompt.tag == "cross":  # both turn round
        for each in include:
            each["motion"] = OPPOSITE[each["motion"]]
    elif case.prompt.tag == "bounce":
        clause["motion"] = other(rng, BOUNCES, clause["motion"])
    else:
        clause["motion"] = other(rng, MOVES, clause["motion"])
    return include, None


def standing(rng, case: Case):
    return [{**clause, "motion": "still"} for clause in case.prompt.include], None


def order(rng, case: Case):
    include = deepcopy(case.prompt.include)
    include[1]["passes"][0] = other(rng, PASSES.values(), include[1]["passes"][0])
    return include, None


def frozen(rng, case: Case):
    return None, [case.views[0]] * len(case.views)


def no_turn(rng, case: Case):
    same = Clip(tuple(replace(m, turned=None) for m in case.clip.movers), case.clip.background)
    return None, [View.of(frame) for frame in render_clip(same, case.frames)]


def turns_back(rng, case: Case):
    """In the last frames it has its first colour again."""
    _, unchanged = no_turn(rng, case)
    return None, case.views[:-4] + unchanged[-4:]


def missing(rng, case: Case):
    left = list(case.clip.movers)
    left.pop(int(rng.integers(len(left))))
    frames = render_clip(Clip(tuple(left), case.clip.background), case.frames)
    return None, [View.of(frame) for frame in frames]


TWO = (*PASSES, "cross")
TURNS = ("turn", "move_turn")
MOVING = tuple(kind for kind in KINDS if kind not in ("still", "turn"))
CLEAR = 0.3  # of the score, at least, for a fault that lasts
FAULTS = {  # in which kinds there is one, clips that are tried, the least mean gap
    colour: (KINDS, SPOILT, CLEAR),
    shape: (KINDS, SPOILT, CLEAR),
    swapped: (TWO, SPOILT, CLEAR),
    count: (("count",), SPOILT, CLEAR),
    direction: (KINDS, SPOILT, CLEAR),
    standing: ([kind for kind in MOVING if kind not in PASSES], SPOILT, CLEAR),
    order: (PASSES, SPOILT, CLEAR),
    frozen: (MOVING, SPOILT, CLEAR),
    no_turn: (TURNS, 8, 0.2),  # a colour may be late by half a block, one of four
    turns_back: (TURNS, 8, 0.1),  # four frames of twenty-four
    missing: ((*TWO, "count"), 6, CLEAR),
}


@pytest.mark.parametrize(
    ("kind", "fault"),
    [(kind, fault) for fault, (kinds, *_) in FAULTS.items() for kind in kinds],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_one_fact_wrong(cases, kind, fault):
    rng = np.random.default_rng(7)
    _, number, clear = FAULTS[fault]
    gaps = [case.true.score - case.score(*fault(rng, case)).score for case in cases[kind][:number]]
    assert np.mean(gaps) >= clear
    assert np.mean(np.array(gaps) > 0) >= 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_of_another_clip(cases, kind):
    """The replaced block is noticed and the ones before it keep their score."""
    gaps = []
    for case, foreign in pairwise(cases[kind][:SPOILT]):
        mixed = case.score(views=case.views[:-12] + foreign.views[-12:])
        *kept, replaced = case.true.blocks - mixed.blocks
        assert np.abs(kept).max() < 0.1
        gaps.append(replaced)
    assert np.mean(gaps) >= 0.5
    assert np.mean(np.array(gaps) > 0) >= 0.9


# --- the parts of a score -------------------------------------------------------------------------


def test_scores_say_where_the_fault_is(cases):
    for case in cases["move"][:8]:
        broken = list(case.views)
        broken[15:18] = [View([], np.full((128, 128), -1))] * 3
        score = case.score(views=broken)
        assert (score.attributes[15:18] == 0).all()
        assert score.attributes.shape == score.motion.shape == score.order.shape == (len(broken),)
        assert score.score == pytest.approx(score.blocks.mean())
        assert np.isnan(score.order).all()


@pytest.mark.parametrize("kind", ["cross", "count"])
def test_what_is_gone_moves_no_more(cases, kind):
    """Six frames after it was last seen; as if it had never been there."""
    case, there = cases[kind][0], cases[kind][0].clip.movers
    fewer = Clip(there[1:], case.clip.background)
    empty = [View.of(frame) for frame in render_clip(fewer, case.frames)]
    gone, never = case.score(views=case.views[:6] + empty[6:]), case.score(views=empty)
    assert gone.motion[:6].mean() > 0.9
    assert (gone.motion[12:] <= 1 - 1 / len(there) + 1e-9).all()
    assert gone.blocks[1] == pytest.approx(never.blocks[1], abs=0.05)


def test_pixels_and_detections_agree(cases):
    case = cases["cross"][0]
    frames = render_clip(case.clip, case.frames)
    assert judge(frames, case.prompt, case.frames.start).score == case.true.score


def test_blocks_are_those_of_the_timing(cases):
    case = cases["move"][0]
    blocks = judge_views(case.views, case.prompt, 1, Timing(1, 4)).blocks
    assert len(blocks) == len(case.views) / 4


def test_only_square_frames_are_taken(cases):
    prompt = cases["move"][0].prompt
    for wrong in (np.zeros((0, 8, 8, 3)), np.zeros((8, 8, 3)), np.zeros((2, 8, 9, 3))):
        with pytest.raises(ValueError, match="square frames"):
            judge(wrong.astype(np.uint8), prompt)
    with pytest.raises(ValueError, match="uint8"):
        judge(np.zeros((2, 8, 8, 3)), prompt)
