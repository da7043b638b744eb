"""Masked diffusion models that draft: both stages, against slow twins, and what they are given."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import MambaConfig, MambaForCausalLM

import mmspec
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.train import recipes
from mmspec.train.heads import pool
from mmspec.train.text import prompts as text_prompts
from mmspec.train.text import teacher as text_teacher
from mmspec.train.text.masked import FALL, CutText, TextDenoiseRecipe, TextRefineRecipe
from mmspec.train.trainer import TrainConfig

NEW, BLOCK = 10, 4
OPTIONS = {"steps": 3, "batch_size": 2, "max_new_tokens": NEW}
STAGES = {"denoise": TextDenoiseRecipe, "refine": TextRefineRecipe}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(text_prompts, "HELD_OUT", 3)
    monkeypatch.setattr(text_teacher, "ASKED", 6)
    for name in ("POOL", "USES", "TOGETHER"):
        monkeypatch.setattr(pool, name, 2)


def recipe_of(stage, own, tmp_path, batch=2, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = TrainConfig(tmp_path / "run", 3, batch)
        options = {"settings": {"layers": "2", "block": str(BLOCK)}, **options}
        return STAGES[stage](config, own, max_new_tokens=NEW, **options)


def test_a_text_is_cut():
    """By hand; padding on both sides."""
    tokens = torch.tensor([[0, 7, 8, 9, 5, 6, 0]])
    mask = torch.tensor([[0, 1, 1, 1, 1, 1, 0]]).bool()
    text = CutText.at(tokens, mask, torch.tensor([3]), 99)
    assert text.tokens.tolist() == [[0, 7, 8, 99, 9, 5, 6, 0]]
    assert text.real.tolist() == [[False, True, True, True, True, True, True, False]]
    assert text.place.tolist() == [[-4, -3, -2, -1, 0, 1, 2, 3]]
    assert text.rest.nonzero()[:, 1].tolist() == [4, 5, 6]
    seen = text.seen[0]
    assert [seen[q].nonzero()[:, 0].tolist() for q in range(7)] == [
        [0],
        [1],
        [1, 2],
        *[[1, 2, 3, 4, 5, 6]] * 4,
    ]


def passed(model, before, behind):
    """Logits `[n, V]` at what stands behind a text, by a pass over both without padding."""
    total, known = len(before) + len(behind), len(before)
    seen = torch.ones(total, total, dtype=torch.bool).tril()
    seen[known:] = True
    bias = torch.zeros(total, total).masked_fill(~seen, -torch.inf)[None, None]
    ids = torch.tensor([[*before, *behind]])
    return model(input_ids=ids, attention_mask=bias, use_cache=False).logits[0, known:]


@pytest.mark.parametrize("stage", STAGES)
def test_the_loss_is_that_of_a_pass_for_every_row(own, tmp_path, stage):
    recipe = recipe_of(stage, own, tmp_path)
    batch = recipe.pool.batch(0)
    loss, _ = recipe.loss(0, np.random.default_rng(5), 0)
    rng = np.random.default_rng(5)
    chances, total = rng.random(2), 0.0
    count = batch.answer.sum(1)
    first = batch.answer.long().argmax(1) + (torch.tensor(chances) * count).long()
    text = CutText.at(batch.tokens, batch.mask, first, recipe.separator)
    noised, masked, weights = recipe.noised(text, rng)
    for row in range(2):
        real = batch.tokens[row][batch.mask[row]].tolist()
        pads = int(batch.mask[row].long().argmax())
        cut = int(first[row]) - pads
        before, rest = real[:cut], real[cut:]
        places = noised.place[row] >= 0
        hidden, own_weights = masked[row][places], weights[row][places]
        size = BLOCK if stage == "refine" else len(rest)
        behind = [recipe.mask if hidden[n] else rest[n] for n in range(size)]
        logits = passed(recipe.model, before, [recipe.separator, *behind])[1:]
        for n, token in enumerate(rest[:size]):
            if hidden[n]:
                total += float(
                    own_weights[n] * F.cross_entropy(logits[n].detach(), torch.tensor(token))
                )
    assert float(loss.detach()) == pytest.approx(total / 2, rel=1e-4)
    loss.backward()
    assert all(weight.grad is not None for weight in recipe.model.parameters())
    assert all(weight.grad is None for weight in recipe.teacher.model.parameters())


def test_a_share_of_the_rest_is_masked_and_weighs_as_much_as_all(own, tmp_path):
    """The published weights: 1 / t over the length, so that a row's add up to 1 in the mean."""
    recipe, rng = recipe_of("denoise", own, tmp_path), np.random.default_rng(0)
    tokens = torch.zeros(4000, 8, dtype=torch.long)
    text = CutText.at(tokens, torch.ones_like(tokens).bool(), torch.full((4000,), 2), 9)
    same, masked, weights = recipe.noised(text, rng)
    assert same is text
    assert not bool((masked & ~text.rest).any())
    assert float((weights * masked).sum(1).mean()) == pytest.approx(1, abs=0.1)
    assert masked[text.rest].float().mean() == pytest.approx(0.5, abs=0.02)
    shares = masked.sum(1).float() / 6
    assert {0.0, 1.0} <= {*shares.tolist()}  # from nothing to all


def test_the_next_places_are_masked_and_the_nearest_weigh_most(own, tmp_path):
    """All of them, behind the end of an answer, too: the number of masks does not tell it."""
    recipe, rng = recipe_of("refine", own, tmp_path), np.random.default_rng(0)
    tokens = torch.arange(9)[None].repeat(2, 1)
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    text, masked, weights = recipe.noised(CutText.at(tokens, mask, torch.tensor([4, 4]), 99), rng)
    assert masked.sum(1).tolist() == [BLOCK, BLOCK]
    assert text.real.sum(1).tolist() == [4 + 1 + BLOCK] * 2
    expected = FALL ** -torch.arange(4.0)
    torch.testing.assert_close(weights[0, 5:9], expected / expected.sum())
    torch.testing.assert_close(weights[1, 5:7], expected[:2] / expected[:2].sum())
    assert float(weights.sum()) == pytest.approx(2)


@pytest.mark.slow
def test_training_lowers_the_loss_and_raises_acceptance(own, tmp_path, monkeypatch):
    """A tiny pair: the untrained one has the same layers of the target and guesses."""
    monkeypatch.setattr(text_prompts, "HELD_OUT", 24)
    fresh = recipe_of("denoise", own, tmp_path, batch=8)
    before = fresh.evaluate(fresh.model)

    def held_out(recipe):
        """Its loss on lessons that training does not come to, over many cuts."""
        refining = recipe_of("refine", own, tmp_path / recipe, batch=8, init=None)
        with torch.no_grad():
            found = [float(refining.loss(9, np.random.default_rng(n), 0)[0]) for n in range(8)]
        return sum(found) / len(found)

    guess = held_out("before")
    losses = [guess]
    for stage in STAGES:
        with torch.random.fork_rng():
            (record,) = recipes.train(
                "text-masked-drafter",
                own,
                stage=stage,
                steps=100,
                batch_size=8,
                max_new_tokens=NEW,
                settings={"layers": "2", "block": str(BLOCK)},
            )
        losses.append(held_out(stage))
    assert losses[2] < losses[1] < 0.95 * losses[0]
    for kind in ("greedy", "sampled"):
        name = f"held_out_acceptance_length_{kind}"
        assert record["held_out"][name] > before[name] + 0.05, (before, record["held_out"])


def test_both_stages_to_a_pipeline(own):
    """In one command; the second goes on with the first one's model, and the pipeline drafts."""
    first, second = recipes.train("text-masked-drafter", own, steps=3, batch_size=2)
    assert first["before"] is None
    assert second["before"]["component"] == "drafter"
    saved = json.loads((own / "drafter/config.json").read_text())
    assert saved["mask_token_id"] == saved["sep_token_id"] + 1 == saved["vocab_size"] - 1
    assert "a block of masked places" in (own / "drafter/README.md").read_text()
    pipe = mmspec.TextPipeline.from_pretrained(own, torch_dtype=torch.float64)
    asked = ["the cat saw", "the dog and the cat saw the dog"]
    pipe.enable_speculation("plain")
    plain = pipe(asked, max_new_tokens=24)
    for method in ("deer", "deer-tree"):
        pipe.enable_speculation(method)
        out = pipe(asked, max_new_tokens=24)
        assert out.tokens == plain.tokens
        assert out.stats.fault is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stage": "denoise", "init": "drafter"}, "no folder .*drafter"),
        ({"stage": "denoise", "settings": {"exits": "2"}}, "setting of a drafter"),
        ({"stage": "refine", "settings": {"block": "0"}}, "must be from 1 to 64, not 0"),
        ({"stage": "refine", "settings": {"block": "x"}}, "is a whole number, not 'x'"),
        ({"stage": "refine", "objective": "kl"}, "is for one stage"),
        ({"stage": "refin"}, "did you mean 'refine'"),
    ],
    ids=str,
)
def test_options_that_cannot_be(own, options, message):
    with pytest.raises(InputError, match=message):
        recipes.train("text-masked-drafter", own, **OPTIONS, **options)
    assert not (own / "drafter").exists()


def test_layers_that_read_in_one_direction(own, tmp_path):
    words = mmspec.TextPipeline.from_pretrained(own).tokenizer
    config = MambaConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=3, state_size=4,
        bos_token_id=words.bos_token_id, eos_token_id=words.eos_token_id,
    )  # fmt: skip
    MambaForCausalLM(config).save_pretrained(tmp_path / "mamba")
    words.save_pretrained(tmp_path / "mamba")
    with pytest.raises(InputError, match="read a text in one direction"):
        recipe_of("denoise", tmp_path / "mamba", tmp_path)


def test_from_the_command(own, capsys):
    command = ["train", "text-masked-drafter", "--stage", "denoise", "--pipeline", str(own)]
    command += ["--set", "layers=1", "--set", "block=3", "--steps", "1", "--batch-size", "2"]
    with torch.random.fork_rng():
        assert main([*command, "--max-new-tokens", "5"]) == 0
    assert '"component": "drafter"' in (own / "drafter" / "training.json").read_text()
    capsys.readouterr()
