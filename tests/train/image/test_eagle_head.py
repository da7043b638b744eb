"""The recipe of EAGLE's head, in miniature: its examples, loss against a slow twin, card."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from mmspec.cli.main import main
from mmspec.models.llamagen.eagle_head import EagleHead
from mmspec.models.loading import load_model
from mmspec.models.text_encoder import encode_captions
from mmspec.train import recipes
from mmspec.train.batches import scene_batch
from mmspec.train.image import distillation_data as examples
from mmspec.train.image import eagle_head as image_head
from mmspec.train.image.eagle_head import EagleRecipe
from mmspec.train.trainer import TrainConfig


@pytest.fixture
def recipe(folder, tmp_path, monkeypatch) -> EagleRecipe:
    monkeypatch.setattr(examples, "HELD_OUT", 2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = EagleRecipe(TrainConfig(tmp_path, 100, 3), folder)
        for weight in made.model.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.2)
    return made


@torch.no_grad()
def test_lesson_is_what_the_target_says(recipe):
    captions, pixels = scene_batch(np.random.default_rng([0, 5]), 3, 32)
    example, target = recipe.example_number(5), recipe.teacher
    features, mask = encode_captions(recipe.tokenizer, recipe.text_encoder, captions, 16)
    tokens = recipe.vq.encode(pixels)
    assert torch.equal(example.tokens, tokens)
    both = []
    for rows, caption in enumerate(
        (features, target.cls_embedding.uncond_embedding.expand_as(features))
    ):
        seen = []
        hook = target.layers[-1].register_forward_hook(
            lambda m, i, out, seen=seen: seen.append(out)
        )
        both.append(target(tokens[:, :-1], target.cls_embedding(caption), mask))
        hook.remove()
        states = seen[0] / (seen[0].square().mean(-1, keepdim=True) + 1e-5).sqrt()
        states[:, :16][~mask] = 0
        assert torch.allclose(example.hidden.chunk(2)[rows].float(), states, atol=4e-3)  # halves
    law = (both[1] + 2 * (both[0] - both[1])).softmax(-1)
    kept = law.gather(-1, example.ids.long())
    assert example.probs.shape == (3, 16, 100)
    assert torch.allclose(example.probs.float(), kept / kept.sum(-1, keepdim=True), atol=1e-3)
    assert float(kept.sum(-1).min()) > float(law.topk(99).values.sum(-1).min())


def test_loss_is_that_of_every_level(recipe, monkeypatch):
    """Variation, cross-entropy and smooth L1 by hand, level by level."""
    monkeypatch.setattr(image_head, "DEPTHS", (3,))
    rng = np.random.default_rng(0)
    with torch.no_grad():
        loss, metrics = recipe.loss(5, rng, 0)
        example, expected = recipe.example_number(5), 0.0
        for level, hidden in enumerate(recipe.drafted(recipe.model, example, 3)):
            count = 16 - level
            assert hidden.shape == (6, count, 32)
            logits = recipe.teacher.output(hidden * recipe.teacher.norm.weight)
            q = (logits[3:] + 2 * (logits[:3] - logits[3:])).softmax(-1)
            overlap = cross = 0.0
            for row in range(3):
                for n in range(count):
                    p = torch.zeros(128)
                    p[example.ids[row, level + n].long()] = example.probs[row, level + n].float()
                    overlap += float(torch.minimum(p, q[row, n]).sum()) / (3 * count)
                    cross -= float((p * q[row, n].log()).sum()) / (3 * count)
            gap = (hidden - example.hidden[:, 15 + level :].float()).abs()
            smooth = torch.where(gap < 1, 0.5 * gap**2, gap - 0.5).mean()
            expected += 1 - overlap + cross + float(smooth)
            assert metrics[f"acceptance_{level + 1}"] == pytest.approx(overlap, abs=1e-4)
    assert float(loss) == pytest.approx(expected / 3, abs=1e-3)


@torch.no_grad()
def test_first_level_stands_on_the_targets_states(recipe):
    example = recipe.example_number(1)
    (hidden,) = recipe.drafted(recipe.model, example, 1)
    prefix, mask = recipe.condition(recipe.teacher, example.features, example.mask)
    row = 4  # a row without a caption
    embedded = torch.cat(
        [prefix[row], recipe.teacher.tok_embeddings(example.tokens[row - 3, :-1])]
    )[None]
    before = F.pad(example.hidden[row, :-1].float(), (0, 0, 1, 0))[None]
    allowed = torch.ones(31, 31).tril().bool()
    allowed[:, :16] &= mask[row]
    allowed |= torch.eye(31).bool()
    added = torch.zeros(31, 31).masked_fill(~allowed, -torch.inf)[None, None]
    (wanted,) = recipe.model(embedded, before, recipe.teacher.rotary()[:31], added)
    assert torch.allclose(hidden[row], wanted[0, 15:], atol=1e-5)


def test_gradient_reaches_every_weight_and_no_other(recipe):
    rng = np.random.default_rng(0)
    loss, _ = recipe.loss(recipe.draw(rng, 0), rng, 0)
    loss.backward()
    for name, weight in recipe.model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert weight.grad.any(), name
    moved = {id(p) for o in recipe.optimizers() for g in o.param_groups for p in g["params"]}
    assert moved == {id(p) for p in recipe.model.parameters()}
    assert all(p.grad is None for p in recipe.teacher.parameters())


def test_recipe_from_the_command_line(folder, capsys, monkeypatch):
    """Trained, stopped, resumed: the finished head is a component with a card."""
    monkeypatch.setattr(examples, "HELD_OUT", 2)
    before = load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
    for steps in (2, 3):
        (record,) = recipes.train("image-head", folder, stage="eagle", steps=steps, batch_size=2)
        assert record["step"] == steps
    capsys.readouterr()
    options = ["--pipeline", str(folder), "--stage", "eagle", "--steps", "3", "--batch-size", "2"]
    assert main(["train", "image-head", *options]) == 0
    (again,) = json.loads(capsys.readouterr().out)
    assert again["held_out"] == record["held_out"]
    names = [f"held_out_acceptance_at_depth_{depth}" for depth in (1, 2, 3, 4)]
    assert list(record["held_out"]) == [*names, "target_entropy"]
    assert all(0 < record["held_out"][name] <= 1 for name in names)
    card = (folder / "eagle" / "README.md").read_text()
    assert "Not good for" in card
    assert "held_out_acceptance_at_depth_4" in card
    assert load_model(EagleHead, folder / "eagle").config.dim == 32
    (weights,) = (folder / "eagle").glob("*.safetensors")
    assert {value.dtype for value in load_file(weights).values()} == {torch.float16}
    index = json.loads((folder / "model_index.json").read_text())
    assert index["eagle"] == ["mmspec.models.llamagen.eagle_head", "EagleHead"]
    after = load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
    assert all(torch.equal(after[name], before[name]) for name in before)  # the target is frozen
