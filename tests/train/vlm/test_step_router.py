"""Recipes of routers of steps: what the world says of both models' sentences is learned."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from mmspec import VlmPipeline, load_router
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.train import recipes
from mmspec.train.judging import roc_auc
from mmspec.train.trainer import TrainConfig
from mmspec.train.vlm import pair as pair_recipe
from mmspec.train.vlm import step_router as recipe
from mmspec.train.vlm.step_router import STEP, VlmAdvantageRecipe, VlmRouterRecipe

STAGES = {"router": VlmRouterRecipe, "advantage_router": VlmAdvantageRecipe}


def labelled(self, asked, first):
    """Steps whose draft is bad where a state's first number is large, the target's always half."""
    generator = torch.Generator().manual_seed(first)
    states = torch.randn(64, STEP, 16, generator=generator)
    lengths = torch.randint(1, 9, (64,), generator=generator)
    bad = torch.rand(64, generator=generator) < 0.4
    states[bad, 0, 0] += 6
    own = (~bad).double()
    return states.half(), lengths, torch.stack([own, torch.full_like(own, 0.5)], dim=1)


@pytest.mark.slow
def test_routers_learn_and_a_pipeline_takes_them(pair, monkeypatch, capsys):
    monkeypatch.setattr(VlmRouterRecipe, "described", labelled)
    command = ["train", "vlm-router", "--pipeline", str(pair), "--steps", "200", "--quiet"]
    for stage in STAGES:
        assert main([*command, "--stage", stage, "--set", "pictures=192", "--rate", "0.01"]) == 0
        (record,) = json.loads(capsys.readouterr().out)
        figures = record["held_out"]
        assert record["config"]["drafted_steps"] == 6 * 64
        assert figures["held_out_rank_correlation"] > 0.7
        assert figures["held_out_gained_share"] > 0.9 > figures["held_out_gained_by_chance"]
        assert figures["held_out_wasted_share"] < figures["held_out_wasted_by_chance"]
        assert "Router" in (pair / stage / "README.md").read_text().title()
        states, lengths, scores = labelled(None, None, 10**6)
        guess = load_router(pair / stage).eval()(states.float(), lengths)
        # one says how good a draft is by itself, the other whether the target does better
        good, better = scores[:, 0] > scores[:, 1], scores[:, 1] > scores[:, 0]
        wanted = better if stage == "advantage_router" else good
        assert roc_auc(guess, wanted) > 0.95

    pipe = VlmPipeline.from_pretrained(pair)
    picture = np.zeros((32, 32, 3), np.uint8)
    plain = pipe("What is this?", picture, max_new_tokens=8).tokens
    for method in ("arbitrage", "arbitrage[advantage_tau=0]", "reward-guided"):
        pipe.enable_speculation(method)
        out = pipe("What is this?", picture, max_new_tokens=8)
        assert (out.stats.contract, out.stats.fault) == ("lossy", None)
        assert out.tokens == plain or "0" not in method
    Image.fromarray(picture).save(pair.parent / "black.png")
    ask = ["ask", str(pair.parent / "black.png"), "What is this?", "--model", str(pair)]
    assert main([*ask, "--method", "arbitrage", "--max-new-tokens", "5"]) == 0


def test_descriptions_give_steps_of_both_models(pair, monkeypatch):
    """Of the real thing: each step is scored in its text, the target's beside the drafter's."""
    monkeypatch.setattr(pair_recipe, "LIMIT", 12)
    monkeypatch.setattr(recipe, "STEP", 5)
    seen = []

    def score(before, step, picture):
        seen.append((before, step))
        return float(len(seen))

    monkeypatch.setattr(recipe, "score_step", score)
    monkeypatch.setattr(VlmRouterRecipe, "gathered", lambda self, *_: labelled(None, None, 0))
    made = VlmRouterRecipe(TrainConfig(out=pair / "x", steps=1, batch_size=4), pair)
    asked = made._asked("train", 5)
    # no draft stands, and all of them do: whose steps texts are made of
    for first, writer in ((0, 1), (4 * pair_recipe.TOGETHER, 0)):
        seen.clear()
        with torch.inference_mode():
            states, lengths, scores = made.described(made.shown(asked), first)
        assert len(seen) == 2 * len(scores)
        assert states.shape == (len(scores), 5, 16)
        assert lengths.shape == (len(scores),)
        assert int(lengths.min()) >= 1
        assert int(lengths.max()) <= 5
        assert (scores[:, 1] < scores[:, 0]).all()  # the target's was judged before the drafter's
        steps = {"".join(seen[int(number) - 1]) for number in scores[:, writer]}
        assert {before for before, _ in seen} - {""} <= steps


def test_what_is_refused(pair):
    def same(self, asked, first):
        return torch.zeros(3, STEP, 16), torch.ones(3).long(), torch.zeros(3, 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VlmRouterRecipe, "described", same)
        with pytest.raises(InputError, match="gave 3 steps, and the target does better in 0"):
            recipes.train("vlm-router", pair, stage="router", settings={"pictures": "4"})
    with pytest.raises(InputError, match="unknown setting of advantage router 'recall'"):
        recipes.train("vlm-router", pair, stage="advantage_router", settings={"recall": "4"})
