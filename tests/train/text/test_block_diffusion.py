"""A masked model of a language model: its loss by a pass for every block, and its folder."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import mmspec
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.pipelines.model_folders import first_method
from mmspec.train import recipes
from mmspec.train.heads import pool
from mmspec.train.text import prompts as text_prompts
from mmspec.train.text import teacher as text_teacher
from mmspec.train.text.block_diffusion import TextBlockDiffusionRecipe
from mmspec.train.trainer import TrainConfig

NEW, BLOCK = 10, 3
SET = {"block": str(BLOCK)}
ASKED = ["the cat saw", "the dog and the cat saw the dog"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(text_prompts, "HELD_OUT", 4)
    monkeypatch.setattr(text_teacher, "ASKED", 6)
    for name in ("POOL", "USES", "TOGETHER"):
        monkeypatch.setattr(pool, name, 2)


def recipe_of(own, tmp_path, batch=2, **settings):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = TrainConfig(tmp_path / "run", 3, batch)
        return TextBlockDiffusionRecipe(
            config, own, settings={**SET, **settings}, max_new_tokens=NEW
        )


def passed(model, before, behind):
    """Logits `[n, V]` at a block behind a text, by a pass over both without padding."""
    total, known = len(before) + len(behind), len(before)
    seen = torch.ones(total, total, dtype=torch.bool).tril()
    seen[known:] = True
    bias = torch.zeros(total, total).masked_fill(~seen, -torch.inf)[None, None]
    ids = torch.tensor([[*before, *behind]])
    return model(input_ids=ids, attention_mask=bias, use_cache=False).logits[0, known:]


def test_it_begins_as_the_model_itself(own, tmp_path):
    recipe = recipe_of(own, tmp_path)
    words = recipe.teacher.decoder.vocab_size
    assert recipe.model.config.mask_token_id == recipe.mask == words
    theirs = recipe.teacher.model.state_dict()
    for name, weight in recipe.model.state_dict().items():
        assert torch.equal(weight[: len(theirs[name])], theirs[name]), name
    assert recipe_of(own, tmp_path, layers="2").model.config.num_hidden_layers == 2


@pytest.mark.parametrize("step", range(4))
def test_the_loss_is_that_of_a_pass_for_every_block(own, tmp_path, step):
    """Of blocks of several sizes, some of which are cut; padding on both sides."""
    recipe = recipe_of(own, tmp_path)
    batch = recipe.pool.batch(0)
    loss, _ = recipe.loss(0, np.random.default_rng(step), 0)
    rng = np.random.default_rng(step)
    size = int(rng.integers(1, BLOCK + 1))
    noise = recipe.noised(batch.answer, size, rng)
    total = 0.0
    for row in range(len(batch.tokens)):
        real = batch.mask[row].nonzero()[:, 0]
        for number in range(int(noise.block[row].max()) + 1):
            places = (noise.block[row] == number).nonzero()[:, 0]
            if not len(places):
                continue
            assert len(places) <= size
            front = batch.tokens[row, real[real < places[0]]].tolist()
            own_tokens = batch.tokens[row, places]
            hidden = noise.masked[row, places]
            behind = own_tokens.masked_fill(hidden, recipe.mask).tolist()
            logits = passed(recipe.model, front, behind)
            each = F.cross_entropy(logits, own_tokens, reduction="none").detach()
            total += float((each * noise.weights[row, places])[hidden].sum())
    assert float(loss.detach()) == pytest.approx(total / float(batch.answer.sum()), rel=1e-4)
    loss.backward()
    assert all(weight.grad is not None for weight in recipe.model.parameters())
    assert all(weight.grad is None for weight in recipe.teacher.model.parameters())


def test_noise(own, tmp_path):
    """Weights of what is masked are the tokens' number in the mean; a block of one always is."""
    recipe, rng = recipe_of(own, tmp_path), np.random.default_rng(0)
    answer = (torch.arange(12) > 3).repeat(3000, 1)
    for size in (1, 3):
        masked, weights, block = recipe.noised(answer, size, rng)
        assert not bool((masked & ~answer).any())
        assert bool((block[~answer] == -1).all())
        assert float((weights * masked).sum(1).mean()) == pytest.approx(8, abs=0.8)
        if size == 1:
            assert torch.equal(masked, answer)
        else:  # blocks begin anywhere, and what is masked goes by blocks
            assert {*block[:, 4].tolist()} == {0}
            assert {*block[:, 5].tolist()} == {0, 1}
            assert 0.45 < float(masked[answer].float().mean()) < 0.55


def test_training_brings_it_near_the_model(own, tmp_path):
    """It says the model's own tokens more often than before, at one place and in blocks."""
    before = recipe_of(own, tmp_path, batch=8)
    figures = before.evaluate(before.model)
    with torch.random.fork_rng():
        (record,) = recipes.train(
            "text-masked", own, steps=80, batch_size=8, max_new_tokens=NEW, settings=SET
        )
    for size in (1, BLOCK):
        name = f"held_out_right_of_{size}"
        assert record["held_out"][name] > figures[name] + 0.1, (figures, record["held_out"])
    assert record["held_out"]["held_out_acceptance_length_greedy"] >= 1


def test_its_folder_answers_by_all_methods(own, capsys):
    """The folder has all that s2d2 needs: from the command to a pipeline."""
    command = ["train", "text-masked", "--pipeline", str(own), "--steps", "2", "--batch-size", "2"]
    with torch.random.fork_rng():
        assert main([*command, "--set", "block=3", "--max-new-tokens", "6", "--quiet"]) == 0
    assert '"component": "masked"' in (own / "masked/training.json").read_text()
    assert "masked diffusion model" in (own / "masked/README.md").read_text()
    assert first_method(own / "masked", "vlm") == "s2d2"
    pipe = mmspec.TextPipeline.from_pretrained(own / "masked", dtype="float64")
    plain = pipe(ASKED, max_new_tokens=12).tokens
    for method, contract in (
        ("s2d2", "exact"),
        ("s2d2[rule=routed,verify_policy=always]", "lossy"),
        ("s2d2-routed", "lossy"),
        ("block-diffusion", "lossy"),
    ):
        pipe.enable_speculation(method)
        out = pipe(ASKED, max_new_tokens=12)
        assert out.stats.fault is None
        assert out.stats.contract.startswith(contract)
        if "diffusion" not in method and method != "s2d2-routed":
            assert out.tokens == plain
    capsys.readouterr()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init": "masked"}, "no folder .*masked|unknown component"),
        ({"settings": {"exits": "2"}}, "setting of a drafter"),
        ({"settings": {"block": "0"}}, "must be from 1 to 64, not 0"),
        ({"settings": {"layers": "9"}}, "layers of a drafter must be from 1"),
    ],
    ids=str,
)
def test_options_that_cannot_be(own, options, message):
    with pytest.raises(InputError, match=message):
        recipes.train("text-masked", own, steps=1, batch_size=2, max_new_tokens=NEW, **options)
    assert not (own / "masked").exists()
