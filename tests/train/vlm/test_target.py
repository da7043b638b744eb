"""The recipe of vision-language models in miniature: it learns the law of single questions."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from packed_rows import check_packed_rows
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmspec.errors import InputError
from mmspec.pipelines.verdict.folder import VerdictWords, experts_in, verdict_words
from mmspec.train import recipes
from mmspec.train.tokenizers import exchange_tokenizer
from mmspec.train.trainer import TrainConfig, Trainer
from mmspec.train.vlm import data as vlm_data
from mmspec.train.vlm import recipe as vlm_recipe
from mmspec.train.vlm import target as vlm_target
from mmspec.train.vlm.data import (
    CHARTS,
    VERDICT,
    draw_examples,
    sample_example,
)
from mmspec.train.vlm.recipe import answer_all, build_processor, token_losses
from mmspec.train.vlm.target import VlmTargetRecipe
from mmspec.train.vlm.tower import VlmTowerRecipe
from mmspec.train.vlm.turns import Turns
from mmspec.worlds.shapes.exchanges import (
    KINDS,
    LONG_KINDS,
    held_out_questions,
    sample_exchange,
)
from mmspec.worlds.shapes.patches import LABELS, PLACES

SMALL = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
RECORD = {
    "config": {"ema": 0.9, "steps": 1, "batch_size": 1, "precision": "float32", "seed": 0},
    "held_out": {},
    "step": 1,
    "minutes": 0.0,
    "device": "cpu",
    "threads": 1,
    "torch": "",
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Sizes of a toy: 32 px, nine patches."""
    monkeypatch.setattr(vlm_target, "SIDE", 36)
    monkeypatch.setattr(vlm_target, "PATCH", 12)
    monkeypatch.setattr(vlm_target, "VISION", SMALL)
    monkeypatch.setattr(
        vlm_target, "TEXT", {"target": SMALL, "sibling": {**SMALL, "hidden_size": 16}}
    )
    monkeypatch.setattr(vlm_recipe, "QUESTIONS", 1)
    monkeypatch.setattr(vlm_recipe, "DESCRIPTIONS", 2)
    monkeypatch.setattr(vlm_recipe, "BATCH", 4)
    monkeypatch.setattr(vlm_recipe, "LIMITS", {"short": 2, "long": 3})


def recipe_in(folder, stage="target", init=None, **changes):
    config = TrainConfig(folder / "training" / stage, **{"steps": 4, "batch_size": 2, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return VlmTargetRecipe(config, folder, stage, init)


def turns():
    return Turns.of(build_processor(exchange_tokenizer(), 36, 12))


# --- words ------------------------------------------------------------------------------------


def test_tokenizer_gives_every_text_again():
    words = exchange_tokenizer()
    rng = np.random.default_rng(0)
    for number in range(300):
        kind = KINDS[number % len(KINDS)]
        _, exchange = sample_exchange(rng, kind, ("train", "held_out")[number % 2])
        for text in (exchange.question, exchange.answer):
            ids = words(text).input_ids
            assert words.unk_token_id not in ids, text
            assert words.decode(ids) == text
    ids = words("How many cats?").input_ids
    assert words.convert_ids_to_tokens(ids) == ["How", " many", "<unk>", "?"]


def test_chat_template():
    words = exchange_tokenizer()
    content = [{"type": "image"}, {"type": "text", "text": "Count the stars."}]
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "3"}]
    text = words.apply_chat_template(messages, tokenize=False)
    assert text == "<|user|><image>Count the stars.<|assistant|>3</s>"
    text = words.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert text == "<|user|><image>Count the stars.<|assistant|>"
    ids = words(text).input_ids
    assert ids[:2] == [words.user_token_id, words.image_token_id]
    assert ids[-1] == words.assistant_token_id


# --- examples ---------------------------------------------------------------------------------


def test_lessons_are_the_same_for_the_same_step():
    one, other = (
        draw_examples(turns(), 3, 36, 9, CHARTS, np.random.default_rng(4), 0) for _ in range(2)
    )
    assert all(
        torch.equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True)
    )
    assert one.pictures.shape == (3, 36, 36, 3)
    assert one.ids.shape == one.segments.shape == one.positions.shape == one.weights.shape


def test_lessons_hold_every_kind():
    rng = np.random.default_rng(0)
    said = [exchange for _ in range(150) for exchange in sample_example(rng)[1]]
    assert {exchange.kind for exchange in said} == set(KINDS)
    long = sum(exchange.kind in LONG_KINDS for exchange in said)
    assert 0.1 < long / len(said) < 0.25


@pytest.mark.parametrize("verdict", [False, True])
def test_a_packed_row_is_its_questions_one_by_one(verdict):
    """Losses of every answer token equal those of the question alone, through the processor.

    A question for a verdict is the one that Speculative Verdict asks.
    """
    words = exchange_tokenizer()
    model = vlm_target.build_model("target", words).eval()
    with torch.no_grad():  # so that attention is not nearly even
        for weight in model.parameters():
            weight.mul_(4 if weight.ndim == 2 else 1)
    processor = build_processor(words, 36, 12)
    check_packed_rows(model, processor, verdict)


def test_experts_learn_their_subject():
    rng = np.random.default_rng(0)
    for charts in (0.0, 1.0):
        said = [exchange for _ in range(20) for exchange in sample_example(rng, charts=charts)[1]]
        assert {"chart" in exchange.kind for exchange in said} == {bool(charts)}
    some = [
        draw_examples(turns(), 1, 36, 9, CHARTS, np.random.default_rng(n), 0) for n in range(40)
    ]
    heard = [int((row.segments == 0).sum()) > 10 for row in some]
    assert 2 <= sum(heard) <= 20  # a step in five


def test_the_picture_matters_to_the_loss():
    words = exchange_tokenizer()
    model = vlm_target.build_model("target", words).eval()
    examples = draw_examples(turns(), 2, 36, 9, CHARTS, np.random.default_rng(1), 0)
    with torch.no_grad():
        first = token_losses(model, examples)
        examples.pictures = 255 - examples.pictures
        second = token_losses(model, examples)
    assert not torch.equal(first[0], second[0])


# --- the recipe -------------------------------------------------------------------------------


def test_gradient_reaches_every_weight_that_is_used(tmp_path, monkeypatch):
    recipe = recipe_in(tmp_path)
    monkeypatch.setattr(vlm_data, "HEARD", 0.0)  # what is heard comes without a long answer
    examples = recipe.draw(np.random.default_rng(0), 0)
    loss, metrics = recipe.loss(examples, np.random.default_rng(0), 0)
    loss.backward()
    assert 0 < metrics["long"] < 20
    for name, weight in recipe.model.named_parameters():
        if "post_layernorm" not in name:  # of the pooled picture, which LLaVA does not read
            assert weight.grad is not None, name
            assert weight.grad.any(), name


def test_all_stages_from_start_to_answer(tmp_path):
    with torch.random.fork_rng():
        records = recipes.train("vlm", tmp_path, steps=2, batch_size=2, workers=0)
    assert [record["step"] for record in records] == [2] * 5
    assert records[1]["before"]["component"] == "tower"
    assert {record["before"]["component"] for record in records[2:]} == {"sibling"}
    assert verdict_words(tmp_path) == VerdictWords(**VERDICT)
    homes = experts_in(tmp_path)
    assert list(homes) == ["drafter", "charts", "scenes"]
    stages = [(home, "sibling" if name == "drafter" else name) for name, home in homes.items()]
    for folder, stage in (*stages, (tmp_path, "target")):
        weights = load_file(folder / "model.safetensors")
        assert {value.dtype for value in weights.values()} == {torch.float16}
        assert "Not good for" in (folder / "README.md").read_text()
        assert json.loads((folder / "training.json").read_text())["component"] == stage
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
        processor = AutoProcessor.from_pretrained(folder)
        assert type(model).__name__ == "LlavaForConditionalGeneration"
        assert model.generation_config.eos_token_id == processor.tokenizer.eos_token_id
        lines = list(held_out_questions(1))[:5]
        together = answer_all(model, processor, lines, 4)
        alone = [answer_all(model, processor, [line], 4)[0] for line in lines]
        assert together == alone  # padded rows answer as they do alone
    figures = records[2]["held_out"]
    assert 0 <= figures["held_out_accuracy"] <= 1
    assert figures["held_out_nats_per_token"] > 0
    assert {f"accuracy_{kind}" for kind in KINDS if kind not in LONG_KINDS} <= set(figures)


def test_target_starts_as_the_sibling_s_function_and_a_stage_from_its_own_weights(
    tmp_path, monkeypatch
):
    larger = {**SMALL, "hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 3}
    sizes = {"target": {**larger, "num_attention_heads": 3}, "sibling": SMALL}
    monkeypatch.setattr(vlm_target, "TEXT", sizes)
    sibling = recipe_in(tmp_path, "sibling")
    with torch.no_grad():  # so that attention is not nearly even
        for weight in sibling.model.vlm.parameters():
            weight.mul_(4 if weight.ndim == 2 else 1.5)
    sibling.export(sibling.model, RECORD)
    started = recipe_in(tmp_path, init="sibling")
    small = recipe_in(tmp_path, "sibling", init="sibling").model.vlm
    for name, weight in small.state_dict().items():
        assert torch.equal(weight, sibling.model.vlm.state_dict()[name]), name
    for part in (*small.modules(), *started.model.vlm.modules()):
        if hasattr(part, "variance_epsilon"):  # which weighs more in the narrower model
            part.variance_epsilon = 1e-30
    examples = sibling.draw(np.random.default_rng(0), 0)
    losses = token_losses(started.model.vlm, examples)[0]
    with torch.no_grad():
        expected = token_losses(small, examples)[0]
    assert expected.std() > 0.1
    assert torch.allclose(losses, expected, atol=1e-4)
    losses.mean().backward()
    layers = started.model.vlm.model.language_model.layers
    for what_is_new in (  # it is silent, and learns
        layers[2].self_attn.o_proj.weight.grad,
        layers[2].mlp.down_proj.weight.grad,
        layers[0].self_attn.o_proj.weight.grad[32:],
        layers[0].mlp.down_proj.weight.grad[:, 32:],
        started.model.vlm.model.language_model.embed_tokens.weight.grad[:, 32:],
    ):
        assert what_is_new.any()
    started.export(started.model, RECORD)
    with pytest.raises(InputError, match=r"no smaller sibling: model\.\S+ does not fit"):
        recipe_in(tmp_path, "sibling", init="target")


def test_sibling_starts_with_the_tower(tmp_path):
    with torch.random.fork_rng():
        (record,) = recipes.train("vlm", tmp_path, stage="tower", steps=2, batch_size=2, workers=0)
    assert set(record["held_out"]) == {f"held_out_{name}" for name in (*LABELS, *PLACES)}
    weights = load_file(vlm_target.vlm_folder(tmp_path, "tower") / "model.safetensors")
    tower = recipe_in(tmp_path, "sibling").model.vlm.model.vision_tower.state_dict()
    assert tower.keys() == weights.keys()
    assert all(torch.equal(tower[name], weights[name].float()) for name in tower)


def test_tower_learns_what_patches_show(tmp_path):
    config = TrainConfig(tmp_path / "training", steps=60, batch_size=8)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        recipe = VlmTowerRecipe(config, tmp_path)
    batch = recipe.draw(np.random.default_rng(0), 0)
    before = recipe.evaluate(recipe.model)
    optimizers, losses = recipe.optimizers(), []
    for step in range(config.steps):
        loss, _ = recipe.loss(batch, np.random.default_rng(0), step)
        loss.backward()
        losses.append(float(loss.detach()))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert losses[-1] < 0.7 * losses[0]
    # colours are what one layer sees first, also in pictures that it was not taught
    assert recipe.evaluate(recipe.model)["held_out_color"] > 1.5 * before["held_out_color"]


def test_what_cannot_be_started(tmp_path):
    with pytest.raises(InputError, match="no folder"):
        recipe_in(tmp_path, init="sibling")
    with pytest.raises(InputError, match="a size is for one stage"):
        recipes.train("vlm", tmp_path, stage="sibling", size=64)
    with pytest.raises(InputError, match="start from"):
        recipes.train("vlm", tmp_path, stage="target", init="nothing")


def test_resumed_run_is_bit_identical(tmp_path):
    def state(trainer):
        return [*trainer.model.state_dict().values(), *trainer.average.state_dict().values()]

    def trainer(name):
        recipe = recipe_in(tmp_path / name, save_minutes=0.0, warmup=2)
        return Trainer(recipe, recipe.config)

    whole, broken = trainer("whole"), trainer("broken")
    whole.run()
    loss = broken.recipe.loss

    def failing(batch, rng, step):
        if step == 2:
            raise KeyboardInterrupt
        return loss(batch, rng, step)

    broken.recipe.loss = failing
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    again = trainer("broken")
    again.run()
    assert again.step == 4
    assert all(map(torch.equal, state(again), state(whole)))


def test_what_goes_on_may_keep_a_share_of_what_it_was(tmp_path):
    first = recipe_in(tmp_path)
    first.export(first.model, RECORD)
    before = recipe_in(tmp_path, init="target").model.vlm.state_dict()
    recipe = recipe_in(tmp_path, init="target", keep=0.25)
    trainer = Trainer(recipe, recipe.config)
    with torch.no_grad():
        for weight in trainer.average.module.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    moved = {n: w.clone() for n, w in trainer.average.module.vlm.state_dict().items()}
    recipe.export(trainer.exported, {**RECORD, "config": dict(RECORD["config"])})
    after = recipe_in(tmp_path, init="target").model.vlm.state_dict()
    for name, weight in before.items():
        goal = 0.25 * weight + 0.75 * moved[name]
        assert torch.allclose(after[name], goal, atol=2e-3), name  # stored as halves
