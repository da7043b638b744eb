"""The recipe of a judge of image tokens: blocks, labels, a short run, and the folder that draws."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from mmspec import ImagePipeline, SpecConfig
from mmspec.cli.main import main
from mmspec.engine.coins import ProductionCoins
from mmspec.errors import InputError
from mmspec.models.heads.judge import JudgeHead
from mmspec.train import recipes
from mmspec.train.image import judge as recipe
from mmspec.train.image.judge import ImageJudgeRecipe
from mmspec.train.trainer import TrainConfig
from mmspec.worlds.shapes import TASKS


@pytest.fixture
def folder(tiny_folder, tmp_path):
    copied = tmp_path / "image"
    shutil.copytree(tiny_folder, copied)
    shutil.rmtree(copied / "judge")
    index = json.loads((copied / "model_index.json").read_text())
    (copied / "model_index.json").write_text(json.dumps({**index, "judge": [None, None]}))
    return copied


def labelled(self, told, first):
    """Tokens of which the first number of the state tells whether they are important."""
    generator = torch.Generator().manual_seed(first)
    states = torch.randn(40, 32, generator=generator) * 3 + 1
    return states, states[:, 0] > 2, torch.rand(40, generator=generator)


@pytest.fixture
def made(folder, tmp_path, monkeypatch):
    """The recipe, which has not drawn pictures yet."""
    with monkeypatch.context() as patch:
        patch.setattr(ImageJudgeRecipe, "labelled", labelled)
        config = TrainConfig(tmp_path / "run", 1, 4)
        return ImageJudgeRecipe(config, folder, {"pictures": "8", "block": "2"})


def draw(pipe, seed=0, **how):
    generator = torch.Generator().manual_seed(seed)
    return pipe("a red circle", generator=generator, output_type="tokens", **how)


def test_it_learns_and_a_pipeline_takes_it(folder, monkeypatch, capsys):
    """A separable case: what was chance before is told apart, and the folder draws with it."""
    monkeypatch.setattr(ImageJudgeRecipe, "labelled", labelled)
    run = ["train", "image-judge", "--pipeline", str(folder), "--steps", "300", "--seed", "1"]
    assert main([*run, "--set", "pictures=256", "--set", "recall=0.8", "--quiet"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    figures = record["held_out"]
    assert figures["held_out_auc"] > 0.95
    assert figures["held_out_auc_of_probability"] < 0.8
    assert record["config"]["tokens"] == 320
    assert "held_out_auc" in (folder / "judge" / "README.md").read_text()
    pipe = ImagePipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    assert isinstance(pipe.judge, JudgeHead)
    assert pipe.judge.threshold == figures["threshold"]
    states, important, _ = labelled(None, None, 0)
    refused = pipe.judge(states)[important] <= pipe.judge.threshold
    assert float(refused.float().mean()) > 0.6
    for method in ("judge", "judge[judge_threshold=0.2,judge_floor=0.001]", "likely"):
        pipe.enable_speculation(method)
        out = draw(pipe)
        assert (out.stats.contract, out.stats.fault) == ("lossy", None)
        assert sum(out.stats.drafted) > 0
    # the sibling's states are others
    pipe.enable_speculation("judge")
    with pytest.raises(InputError, match="'judge' reads the hidden states of 32 px"):
        draw(pipe, height=16)


def test_untrained_it_is_chance(made):
    with torch.no_grad():
        made.model.score.bias.zero_()  # it says the same of all states, whoever rounds
    assert made.evaluate(made.model)["held_out_auc"] == 0.5


def test_a_judge_of_states_as_they_are(made):
    """It says of states what the learned one says of standardized ones."""
    torch.nn.init.normal_(made.model.score.weight)
    states = made.learned[0]
    wanted = made.model((states - states.mean(0)) / states.std(0))
    torch.testing.assert_close(made.folded(made.model)(states), wanted)


def test_a_judge_of_another_target(made, tiny_folder):
    pipe = ImagePipeline.from_pretrained(tiny_folder)
    record = {"held_out": {"threshold": 0.3}, "config": {}}
    with pytest.MonkeyPatch.context() as patch:
        kept = []
        patch.setattr(recipe, "ship", lambda *parts: kept.append(parts) or parts[0] / "judge")
        patch.setattr(recipe, "write_card", lambda *_, **__: None)
        made.export(made.model, record)
    judge = kept[0][2]
    parts = {**pipe.components, "judge": judge}
    assert ImagePipeline(**parts).judge is judge
    with pytest.raises(InputError, match="num_layers 2, and this one has 1"):
        ImagePipeline(**{**parts, "transformer": pipe.drafter})
    with torch.no_grad():
        pipe.transformer.output.weight.mul_(1.5)
    with pytest.raises(InputError, match="other weights in its output layer"):
        ImagePipeline(**parts)
    with pytest.raises(InputError, match="hidden_size 7, and this one has 32"):
        ImagePipeline(**{**parts, "judge": JudgeHead(7)})


# --- labels ---------------------------------------------------------------------------------------


def test_blocks_are_squares_of_the_grid(made):
    blocks = made.blocks(200, np.random.default_rng(0)).view(200, 4, 4)
    corners = set()
    for block in blocks:
        rows, columns = block.any(1).nonzero()[:, 0].tolist(), block.any(0).nonzero()[:, 0].tolist()
        assert len(rows) == len(columns) == 2
        assert int(block.sum()) == 4
        corners.add((rows[0], columns[0]))
    assert len(corners) == 9


@torch.inference_mode()
def test_the_target_draws_on_from_a_place(made):
    """With the same coins, what it draws behind its own beginning is its own picture again."""
    told = made.told(made.prompts("train", 3))
    coins = ProductionCoins([1, 2, 3])
    whole = made.finished_by(made.decoder_of(told), torch.zeros(3, 16).long(), [0, 0, 0], coins)
    begun = whole.clone()
    begun[0, 5:], begun[2, 11:] = 0, 0
    again = made.finished_by(made.decoder_of(told), begun, [5, 16, 11], coins)
    assert torch.equal(again, whole)
    other = (whole + 1) % 128
    kept = made.finished_by(made.decoder_of(told), other, [4, 16, 2], coins)
    assert all(torch.equal(kept[row, :n], other[row, :n]) for row, n in enumerate((4, 16, 2)))


@torch.inference_mode()
@pytest.mark.parametrize(
    ("verdicts", "label"),
    [
        ((True,), False),  # right with them: harmless
        ((False, False, True), True),  # wrong twice with them, right without: important
        ((False, True, True), None),  # wrong by chance
        ((False, False, False), None),  # the target's own error
    ],
)
def test_labels(made, monkeypatch, verdicts, label):
    """Tokens that were left are of one block, the target had rejected them, and all are told."""
    calls = iter(verdicts)
    monkeypatch.setattr(
        ImageJudgeRecipe, "right", lambda self, told, tokens: [next(calls)] * len(tokens)
    )
    made.config = replace(made.config, seed=2**62)  # as large as any that may be given
    told = made.told(made.prompts("train", 12))
    states, labels, probs = made.labelled(told, 0)
    assert states.shape == (len(labels), 32)
    assert len(probs) == len(labels)
    if label is None:
        assert not len(labels)
        return
    assert len(labels) > 5
    assert bool((labels == label).all())
    assert float(probs.max()) <= 1


@torch.inference_mode()
def test_what_is_left_lies_in_the_block(made, monkeypatch):
    rules, within = [], []
    blocks = ImageJudgeRecipe.blocks

    class Noting(recipe.LenientRule):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            rules.append(self)

    monkeypatch.setattr(recipe, "LenientRule", Noting)
    monkeypatch.setattr(
        ImageJudgeRecipe,
        "blocks",
        lambda self, *how: within.append(blocks(self, *how)) or within[0],
    )
    redrawn = []
    monkeypatch.setattr(ImageJudgeRecipe, "right", lambda self, told, tokens: [False] * len(tokens))
    monkeypatch.setattr(
        ImageJudgeRecipe,
        "redrawn",
        lambda self, told, tokens, rows, known, seeds: redrawn.append(known) or [False] * len(rows),
    )
    made.labelled(made.told(made.prompts("train", 12)), 0)
    left = rules[0].left()
    assert len(left.rows) > 5
    assert bool(within[0][left.rows, left.places].all())
    # what follows all of them is drawn anew, and what the first of them stands in front of
    places = [left.places[left.rows == row].tolist() for row in dict.fromkeys(left.rows.tolist())]
    assert redrawn == [[max(own) + 1 for own in places], [min(own) for own in places]]
    assert redrawn[0] != [min(own) + 1 for own in places]


def test_prompts(made):
    """Of all tasks; held-out ones are those of the fixed lists' kind, others than these."""
    assert {prompt.tag for prompt in made.prompts("train", 32)} == set(TASKS)
    held_out = made.prompts("held_out", 9)
    assert len(held_out) == 9
    assert {prompt.tag for prompt in held_out} == set(TASKS)
    assert all(prompt.include for prompt in held_out)


def test_pictures_are_looked_at(made, monkeypatch):
    """By the detector, as the metric looks at them."""
    seen = []
    monkeypatch.setattr(recipe, "detect", lambda picture: seen.append(picture) or [])
    told = made.told(made.prompts("train", 2))
    assert made.right(told, torch.zeros(2, 16).long()) == [False, False]
    assert [(one.shape, one.dtype) for one in seen] == [((32, 32, 3), np.uint8)] * 2


def test_what_is_refused(folder, tmp_path, monkeypatch):
    config = TrainConfig(tmp_path / "run", 1, 4)
    with pytest.raises(InputError, match="block of judge is above 0 and at most 64"):
        ImageJudgeRecipe(config, folder, {"block": "65"})
    pipe = ImagePipeline.from_pretrained(folder)
    with pytest.raises(InputError, match="needs the component 'judge'"):
        pipe.enable_speculation("judge")
    pipe.enable_speculation(SpecConfig("likely"))
    monkeypatch.setattr(
        ImageJudgeRecipe,
        "labelled",
        lambda *_: (torch.zeros(3, 32), torch.zeros(3).bool(), torch.zeros(3)),
    )
    with pytest.raises(InputError, match=r"4 pictures .* gave 3 tokens to judge, 0 of them wr"):
        recipes.train("image-judge", folder, steps=1, settings={"pictures": "4"})
    shutil.rmtree(folder / "drafter")
    with pytest.raises(InputError, match="has no drafter, whose tokens a judge is to learn from"):
        ImageJudgeRecipe(config, folder)
