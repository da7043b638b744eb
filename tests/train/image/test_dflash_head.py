"""The recipe of DFlash's head over pictures, in miniature: lessons, loss, a folder that draws."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mmspec import ImagePipeline, SpecConfig
from mmspec.cli.main import main
from mmspec.draft.feature.dflash import DFlashModel
from mmspec.engine.draft import Context
from mmspec.errors import InputError
from mmspec.models.guided import GuidedDecoder
from mmspec.models.llamagen.dflash_head import DFlashDecoder, DFlashHead
from mmspec.models.loading import load_model
from mmspec.models.setting import Setting
from mmspec.train import recipes
from mmspec.train.image import dflash_head
from mmspec.train.image import distillation_data as examples
from mmspec.train.image.dflash_head import DFlashRecipe
from mmspec.train.trainer import TrainConfig

SETTINGS = {"block": "5", "layers": "1", "joined": "2"}


@pytest.fixture
def recipe(folder, tmp_path, monkeypatch):
    """Builds a recipe with a head that leans on all its inputs."""
    monkeypatch.setattr(examples, "HELD_OUT", 2)

    def made(spread: float | None = 0.2, **options) -> DFlashRecipe:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            config = TrainConfig(tmp_path, 100, 3)
            found = DFlashRecipe(config, folder, settings=SETTINGS, **options)
            for weight in found.model.parameters():
                if spread is not None:
                    torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=spread)
        return found

    return made


@torch.no_grad()
def test_drafting_reads_what_training_reads(recipe):
    """Laws of the shipped draft model, of blocks that begin anywhere in ragged rows."""
    made = recipe()
    example = made.example(*made.scenes(5))
    tokens, cells = example.tokens, example.tokens.shape[1]
    features, mask = made.encode(made.scenes(5)[0])
    prompt = made.condition(made.teacher, features, mask)
    for firsts in ([0, 7, 13], [1, 0, 4]):
        setting = Setting(*prompt, made.scale, made.warp, cells, made.teacher.grid, 8)
        target = GuidedDecoder(made.decoder, setting)
        model = DFlashModel(DFlashDecoder(made.model, made.decoder), target)
        context = Context.empty(3, cells)
        model.context = context
        target.start(3)
        model.start(3)
        target.extend(torch.cat([tokens[:, :1], tokens[:, :-1]], dim=1), [-1] * 3)
        states = model.decoder.fuse(target.hidden)
        model._features[:, :cells] = states
        context.tokens[:, :cells] = tokens
        context.lengths, context.base = torch.tensor(firsts), firsts
        context.last = tokens.gather(1, (context.lengths - 1).clamp_min(0)[:, None])
        drafted = model.block(context, tokens[:, :0])
        logits, inside = made.lesson(made.model, example, torch.tensor(firsts)[:, None])
        laws = made.warp(logits[:, 0])
        assert inside[:, 0].sum(1).tolist() == [min(5, cells - first) for first in firsts]
        real = inside[:, 0]
        torch.testing.assert_close(drafted[real], laws[real], rtol=2e-2, atol=2e-3)  # halves


def test_loss_is_that_of_every_place(recipe, monkeypatch):
    """Cross-entropy and log-acceptance by hand, at another temperature."""
    monkeypatch.setattr(dflash_head, "STARTS", 2)
    made = recipe(temperature=0.7)
    with torch.no_grad():
        loss, metrics = made.loss(5, np.random.default_rng(0), 0)
        example = made._examples[5]
        first = torch.from_numpy(np.random.default_rng(0).integers(0, 16, (3, 2)))
        logits, _ = made.lesson(made.model, example, first)
        total = weights = 0.0
        for n in range(5):
            each, stood = [], []
            for row in range(3):
                for start in range(2):
                    cell = int(first[row, start]) + n
                    if cell < 16:
                        p = torch.zeros(128)
                        p[example.ids[row, cell].long()] = example.probs[row, cell].float()
                        q = (logits[row, start, n] / 0.7).softmax(-1)
                        stood.append(float(torch.minimum(p, q).sum()))
                        each.append(-float((p * q.log()).sum()) - np.log(stood[-1]))
            total, weights = total + 0.9**n * np.mean(each), weights + 0.9**n
            assert metrics[f"acceptance_{n + 1}"] == pytest.approx(np.mean(stood), abs=1e-5)
    assert float(loss) == pytest.approx(total / weights, rel=1e-4)


def test_laws_are_warped_as_in_decoding(recipe):
    cool, warm = (recipe(temperature=t) for t in (0.5, 1.0))
    entropies = [made.example(*made.scenes(1)).entropy for made in (cool, warm)]
    assert entropies[0] < entropies[1]


@pytest.mark.parametrize("objective", [None, "kl", "log-acceptance", "tv", "jsd-0.1", "jsd-0.9"])
def test_gradient_reaches_every_weight_and_no_other(recipe, objective):
    made, rng = recipe(objective=objective), np.random.default_rng(0)
    loss, _ = made.loss(made.draw(rng, 0), rng, 0)
    loss.backward()
    for name, weight in made.model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert weight.grad.any(), name
    moved = {id(p) for o in made.optimizers() for g in o.param_groups for p in g["params"]}
    assert moved == {id(p) for p in made.model.parameters()}
    assert all(p.grad is None for p in made.teacher.parameters())


def test_a_few_steps_raise_acceptance(recipe):
    made = recipe(None)
    before = made.evaluate(made.model)
    optimizers = made.optimizers()
    for step in range(80):
        rng = np.random.default_rng(step)
        loss, _ = made.loss(made.draw(rng, step), rng, step)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    after = made.evaluate(made.model)
    assert list(after) == [f"held_out_acceptance_at_{n}" for n in (1, 2, 4)] + ["target_entropy"]
    for n in (1, 2, 4):
        name = f"held_out_acceptance_at_{n}"
        assert after[name] > before[name] + 0.03, name


def test_old_batches_are_given_up(recipe, monkeypatch):
    monkeypatch.setattr(dflash_head, "POOL", 2)
    made = recipe()
    for batch in range(4):
        made.loss(batch, np.random.default_rng(batch), 10 * batch)
    assert sorted(made._examples) == [2, 3]


def test_recipe_from_the_command_line(folder, capsys, monkeypatch):
    """Trained, stopped, resumed: the finished head is a component that drafts."""
    monkeypatch.setattr(examples, "HELD_OUT", 2)
    how = dict(stage="dflash", batch_size=2, settings=SETTINGS, objective="log-acceptance")
    for steps in (2, 3):
        (record,) = recipes.train("image-head", folder, steps=steps, **how)
        assert record["step"] == steps
    capsys.readouterr()
    options = ["--pipeline", str(folder), "--stage", "dflash", "--steps", "3", "--batch-size", "2"]
    options += ["--objective", "log-acceptance"]
    options += [part for pair in SETTINGS.items() for part in ("--set", "=".join(pair))]
    assert main(["train", "image-head", *options]) == 0
    (again,) = json.loads(capsys.readouterr().out)
    assert again["held_out"] == record["held_out"]
    card = (folder / "dflash" / "README.md").read_text()
    assert "Not good for" in card
    assert "held_out_acceptance_at_4" in card
    head = load_model(DFlashHead, folder / "dflash")
    assert (head.most, head.config.n_layer, list(head.config.reads)) == (5, 1, [1])
    (weights,) = (folder / "dflash").glob("*.safetensors")
    assert {value.dtype for value in load_file(weights).values()} == {torch.float16}
    index = json.loads((folder / "model_index.json").read_text())
    assert index["dflash"] == ["mmspec.models.llamagen.dflash_head", "DFlashHead"]
    pipe = ImagePipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    pipe.enable_speculation(SpecConfig("dflash", num_draft_tokens=5))
    drawn = pipe("a red circle", generator=torch.Generator().manual_seed(0))
    assert drawn.stats.fault is None
    assert min(drawn.stats.drafted) > 0
    out = folder.parent / "drawn"
    options = ["--model", str(folder), "--method", "dflash"]
    assert main(["generate", "a red circle", "-o", str(out), *options]) == 0
    assert list(out.glob("*.png"))


def test_bad_settings(folder, tmp_path):
    config = TrainConfig(tmp_path, 10, 2)
    with pytest.raises(InputError, match="setting of dflash"):
        DFlashRecipe(config, folder, settings={"blocks": "4"})
    with pytest.raises(InputError, match="block of dflash is a whole number, not 'four'"):
        DFlashRecipe(config, folder, settings={"block": "four"})
    with pytest.raises(InputError, match="layers of dflash must be 1 or more, not 0"):
        DFlashRecipe(config, folder, settings={"layers": "0"})
    with pytest.raises(InputError, match="objective"):
        DFlashRecipe(config, folder, objective="hope")
