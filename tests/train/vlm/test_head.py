"""The recipe of draft heads: what an example holds, curricula, short runs of every method, data."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_llava import save_small_llava
from toy_vlm import TRAINED

from mmspec.cli.main import main
from mmspec.draft.feature.chains import chain_of
from mmspec.draft.feature.head_model import head_model
from mmspec.draft.null import NullDrafter
from mmspec.engine.warp import Warp
from mmspec.errors import InputError
from mmspec.models.heads.columns import Images
from mmspec.models.heads.loading import load_head
from mmspec.models.transformers.prompt_inputs import process_questions
from mmspec.models.transformers.vlm_folder import load_vlm
from mmspec.train import recipes
from mmspec.train.heads import pool
from mmspec.train.trainer import TrainConfig, Trainer
from mmspec.train.vlm import prompts as vlm_prompts
from mmspec.train.vlm.head import VlmHeadRecipe
from mmspec.train.vlm.prompts import ShapesPrompts
from mmspec.train.vlm.teacher import VlmTeacher

METHODS = TRAINED
NEW = 10  # tokens of an answer
SETTINGS = {"flash": {"latents": "3", "block": "3"}, "dflash": {"block": "3"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny LLaVA of random weights, whose words depend on what it sees and on each other."""
    path = tmp_path_factory.mktemp("vlm")
    save_small_llava(path)
    return path


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(vlm_prompts, "HELD_OUT", 3)
    monkeypatch.setattr(pool, "POOL", 2)
    monkeypatch.setattr(pool, "USES", 2)
    monkeypatch.setattr(pool, "TOGETHER", 4)


@pytest.fixture
def build(folder, tmp_path, quick):
    """Recipes whose head has the same first weights every time."""

    def made(method, steps=6, rate=None, settings=None, **config):
        config = TrainConfig(tmp_path / "run", steps, 4, ema=0.5, warmup=1, **config)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            own = {
                "settings": settings or SETTINGS.get(method, {}),
                "rate": rate,
                "max_new_tokens": NEW,
            }
            return VlmHeadRecipe(config, folder, method, **own)

    return made


# --- what the teacher shows -----------------------------------------------------------------------


@pytest.mark.parametrize("seen", [True, False])
def test_a_lesson_is_what_the_model_itself_computes(folder, seen):
    """Row by row against transformers' own forward pass over prompt and answer, unpadded."""
    model, processor = load_vlm(folder, torch.float32).values()
    reads = (1, 2) if seen else ()
    teacher = VlmTeacher(model, processor, NEW, reads)
    teacher.ends = tuple(range(0, model.config.text_config.vocab_size, 8))
    questions = ShapesPrompts(32).draw(np.random.default_rng(3), 6)
    examples = teacher.examples(questions, [10, 11, 12, 13, 14, 15], 4, seen)
    assert [len(example.mask) for example in examples] == [4, 2]
    assert all((example.images is not None) == seen for example in examples)
    assert all(example.mask.any(0).all() for example in examples)
    greedy, lengths = [], set()
    for number in range(6):
        example, row = examples[number // 4], number % 4
        pictures = [[questions.pictures[number]] if seen else []]
        inputs = process_questions(processor, pictures, questions.texts[number : number + 1], model)
        own, prompt = example.mask[row], inputs["input_ids"].shape[1]
        assert int((own & ~example.answer[row]).sum()) == prompt
        if seen:
            (span,) = (inputs["input_ids"][0] == model.config.image_token_id).nonzero().T.tolist()
            place = example.images.place[:, example.images.place[0] == row]
            pads = int((~own).long().cumprod(0).sum())
            assert (place[1] - pads).tolist() == span
        length = int(example.answer[row].sum())
        answer = torch.stack(
            [
                (model.get_input_embeddings().weight - x).abs().sum(1).argmin()
                for x in example.embedded[row, example.answer[row]]
            ]
        )
        lengths.add(length)
        ends = [token in teacher.ends for token in answer.tolist()]
        assert ends == [False] * (length - 1) + [ends[-1]]
        assert ends[-1] or length == NEW
        ids = torch.cat([inputs.pop("input_ids"), answer[None]], dim=1)
        pixels = {"pixel_values": inputs["pixel_values"]} if seen else {}
        with torch.no_grad():
            out = model(input_ids=ids, **pixels, output_hidden_states=True)
        # the hidden state behind the last token is nobody's to draft from
        states = example.features[row, own][:-1]
        assert torch.allclose(states, out.hidden_states[-1][0, :-1], atol=1e-4)
        read = torch.cat([out.hidden_states[n][0, :-1] for n in reads or (-1,)], dim=-1)
        assert torch.allclose(example.states[row, own][:-1], read, atol=1e-4)
        assert torch.allclose(
            teacher.on_device(example).output(states), out.logits[0, :-1], atol=1e-4
        )
        greedy.append(torch.equal(out.logits[0, prompt - 1 : -1].argmax(-1), answer))
    assert greedy[::2] == [True, True, True]
    assert not all(greedy[1::2])  # drawn
    assert len(lengths) > 2


def test_drawn_answers_follow_the_law(folder):
    """First words of many answers to one question, against the model's own law."""
    model, processor = load_vlm(folder, torch.float32).values()
    teacher = VlmTeacher(model, processor, 1)
    one = ShapesPrompts(32).draw(np.random.default_rng(3), 1)
    many = vlm_prompts.Questions(one.pictures * 400, one.texts * 400)
    (example,) = teacher.examples(many, list(range(1, 800, 2)), 400)
    law = (
        teacher.on_device(example)
        .output(example.features[0, example.mask.shape[1] - 2])
        .softmax(-1)
    )
    table = model.get_input_embeddings().weight
    drawn = torch.cdist(example.embedded[:, -1], table).argmin(1)
    top = law.topk(3)
    for p, token in zip(top.values.tolist(), top.indices.tolist(), strict=True):
        share = float((drawn == token).float().mean())
        assert share == pytest.approx(p, abs=4 * (p * (1 - p) / 400) ** 0.5)


def test_lessons_depend_on_their_number_alone(build):
    first, second = build("eagle"), build("eagle")
    before = first.pool.batch(0)
    mine, theirs = first.pool.batch(5), second.pool.batch(5)
    for name in ("embedded", "features", "mask", "answer"):
        assert torch.equal(getattr(mine, name), getattr(theirs, name))
    for other in (before, first.pool.batch(4)):
        assert not torch.equal(mine.embedded[0, -NEW:], other.embedded[0, -NEW:])
    assert {number for number, _ in first.pool._held} == {4, 5, 6, 7}  # the pool is bounded


# --- training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_short_run_leaves_a_head_that_drafts(folder, tmp_path, quick, method):
    own = shutil.copytree(folder, tmp_path / "vlm")
    options = {"settings": SETTINGS.get(method, {}), "max_new_tokens": NEW}
    (record,) = recipes.train("vlm-head", own, stage=method, steps=3, batch_size=3, **options)
    for how in ("greedy", "sampled"):
        assert 1 <= record["held_out"][f"held_out_acceptance_length_{how}"] <= NEW
        assert 0 <= record["held_out"][f"held_out_acceptance_{how}_at_depth_1"] <= 1
    log = [json.loads(line) for line in (own / "training" / method / "log.jsonl").open()]
    assert [line["step"] for line in log] == [3]
    assert log[0]["loss"] > 0
    card = (own / "heads" / method / "README.md").read_text()
    assert "Not good for" in card
    head = load_head(own / "heads" / method)
    assert head.method == method
    for name, value in options["settings"].items():
        sizes = {
            "block": head.block_size,
            "latents": len(getattr(head.network, "latent_queries", "")),
        }
        assert sizes[name] == int(value)
    teacher = VlmTeacher(*load_vlm(own, torch.float32).values(), NEW)
    questions = ShapesPrompts(32).held_out()
    drafted = []
    for with_head in (True, False):
        with torch.inference_mode():
            target, prompt = teacher.prompt(questions, Warp(0.0), 16)
            drafter = NullDrafter()
            if with_head:
                drafter = chain_of(head_model(head, target, Images.of(prompt.images)))
            context, stats = teacher.answer(target, drafter, 3 if with_head else 0, [0, 1, 2])
        drafted.append(sum(stats.drafted))
        rows = zip(context.tokens.tolist(), context.base, strict=True)
        if with_head:
            answers = [row[:n] for row, n in rows]
        else:
            assert answers == [row[:n] for row, n in rows]
    assert drafted[0] > drafted[1] == 0


@pytest.mark.parametrize(("method", "done"), [*((name, 1.0) for name in METHODS), ("vispec", 0.0)])
def test_loss_falls_on_a_repeated_lesson(build, method, done):
    recipe = build(method, rate=0.02)
    recipe.model.train()
    recipe.done = done
    optimizers = recipe.optimizers()
    losses = []
    with torch.random.fork_rng():
        for step in range(30):
            # the same chance in every step: the same levels, branches and anchors
            loss, metrics = recipe.loss(0, np.random.default_rng(5), step)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(float(loss.detach()))
            assert all(0 <= value <= 1 for value in metrics.values())
    assert losses[-1] < 0.9 * losses[0]
    assert all(weight.grad is None for weight in recipe.teacher.model.parameters())


@pytest.mark.parametrize("method", ["specvlm", "dflash", "msd"])
def test_resumed_run_is_an_unbroken_one(build, tmp_path, method, monkeypatch):
    """Also what heads draw as they learn: branches, anchors, whether pictures are shown."""
    whole = build(method)
    with torch.random.fork_rng():
        record = Trainer(whole, whole.config).run()
    recipe = build(method)
    broken = replace(recipe.config, out=tmp_path / "broken", save_minutes=0.0)
    real = recipe.loss

    def interrupted(batch, rng, step):
        if step == 4:
            raise KeyboardInterrupt
        return real(batch, rng, step)

    monkeypatch.setattr(recipe, "loss", interrupted)
    with pytest.raises(KeyboardInterrupt), torch.random.fork_rng():
        Trainer(recipe, broken).run()
    again = build(method)
    with torch.random.fork_rng():
        torch.manual_seed(8)
        resumed = Trainer(again, broken).run()
    assert resumed["held_out"] == record["held_out"]
    for ours, theirs in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_head_is_trained_further(folder, tmp_path, quick):
    own = shutil.copytree(folder, tmp_path / "vlm")
    options = {"stage": "eagle", "steps": 1, "batch_size": 2, "max_new_tokens": NEW}
    recipes.train("vlm-head", own, **options)
    before = load_head(own / "heads" / "eagle").state_dict()
    shutil.rmtree(own / "training")
    (record,) = recipes.train("vlm-head", own, init="eagle", seed=4, rate=1e-6, **options)
    after = load_head(own / "heads" / "eagle").state_dict()
    assert all(torch.allclose(after[key], before[key], atol=1e-3) for key in before)
    assert (record["before"]["component"], record["before"]["config"]["seed"]) == ("eagle", 0)


def test_a_head_keeps_a_share_of_what_it_was(folder, tmp_path, quick):
    own = shutil.copytree(folder, tmp_path / "vlm")
    options = {"stage": "eagle", "steps": 1, "batch_size": 2, "max_new_tokens": NEW}
    with pytest.raises(InputError, match="of a run with --init eagle"):
        recipes.train("vlm-head", own, keep=0.5, **options)
    with pytest.raises(InputError, match="keep must be from 0 to 1"):
        recipes.train("vlm-head", own, init="eagle", keep=1.0, **options)
    recipes.train("vlm-head", own, **options)
    heads = [load_head(own / "heads" / "eagle").state_dict()]
    first = shutil.copytree(own / "heads", tmp_path / "first")
    for keep in (0.0, 0.25):
        shutil.rmtree(own / "training")
        shutil.rmtree(own / "heads")
        shutil.copytree(first, own / "heads")
        recipes.train("vlm-head", own, init="eagle", seed=4, rate=10.0, keep=keep, **options)
        heads.append(load_head(own / "heads" / "eagle").state_dict())
    before, after, mixed = heads
    assert any(not torch.allclose(after[key], before[key], atol=0.01) for key in before)
    for key, weight in mixed.items():
        expected = 0.25 * before[key] + 0.75 * after[key]
        assert torch.allclose(weight, expected, atol=2e-3), key
    # over already, and what it began from is its own export by now
    recipes.train("vlm-head", own, init="eagle", seed=4, rate=10.0, keep=0.25, **options)
    again = load_head(own / "heads" / "eagle").state_dict()
    assert all(torch.equal(again[key], mixed[key]) for key in mixed)


@pytest.mark.parametrize(("choose", "explores"), [("gate", True), ("pooling", False)])
def test_specvlm_takes_the_branch_that_its_curriculum_says(build, choose, explores):
    """Unless it was made for one branch; what is evaluated and written has the gate's choice."""
    recipe = build("specvlm", settings={"choose": choose})
    network, taken = recipe.model.network, set()
    for step in range(24):
        recipe.loss(0, np.random.default_rng(step), step)
        taken.add(network.choose)
    assert network.saved == choose
    assert explores or taken == {choose}
    assert not explores or len(taken) > 3


def test_the_trainer_tells_how_far_it_is(build, monkeypatch):
    """MSD's examples are text alone at first, and all have pictures from the middle on."""
    recipe = build("msd", steps=20)
    shown = []
    batch = recipe.pool.batch
    monkeypatch.setattr(
        recipe.pool, "batch", lambda number, seen: shown.append(seen) or batch(number, seen)
    )
    monkeypatch.setattr(recipe, "export", lambda model, record: None)
    with torch.random.fork_rng():
        Trainer(recipe, recipe.config).run()
    assert shown[:2] == [False] * 2
    assert shown[10:] == [True] * 10


# --- data and options -----------------------------------------------------------------------------


def test_a_run_on_lines_of_ones_own(folder, tmp_path, quick):
    own = shutil.copytree(folder, tmp_path / "vlm")
    Image.new("RGB", (20, 24)).save(tmp_path / "a.png")
    file = tmp_path / "asked.jsonl"
    file.write_text('{"image": "a.png", "question": "What?"}\n' * 4)
    options = ["--method", "specvlm", "--set", "choose=pooling", "--set", "factor=4"]
    options += ["--steps", "1", "--batch-size", "2", "--max-new-tokens", "5"]
    options += ["--pipeline", str(own), "--data", str(file)]
    with torch.random.fork_rng():
        assert main(["train", "vlm-head", *options]) == 0
    head = load_head(own / "heads" / "specvlm")
    assert (head.network.choose, head.network.compressor.factor) == ("pooling", 4)
    assert (
        "3 pictures with questions of asked.jsonl"
        in (own / "heads" / "specvlm" / "README.md").read_text()
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stage": "eagles"}, "did you mean 'eagle'"),
        ({"stage": "eagle", "size": 64}, "a size is for one stage: sibling, transformer of image"),
        ({"data": Path("x")}, "data of one's own is for one stage: eagle, vispec"),
        ({"stage": "eagle", "data": Path("none.jsonl")}, "can't read none.jsonl"),
        ({"stage": "eagle", "init": "eagle"}, "heads/eagle"),
        ({"stage": "specvlm", "settings": {"chose": "sum"}}, "did you mean 'choose'"),
        ({"stage": "specvlm", "settings": {"choose": "all"}}, "choose must be one of"),
        ({"stage": "flash", "settings": {"block": "two"}}, "block of flash is a whole number"),
    ],
)
def test_options_that_cannot_be(folder, options, message):
    with pytest.raises(InputError, match=message):
        recipes.train("vlm-head", folder, steps=1, **options)


def test_folders_without_a_model(tmp_path):
    with pytest.raises(InputError, match=r"config\.json"):
        recipes.train("vlm-head", tmp_path, stage="eagle", steps=1)
