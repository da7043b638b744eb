"""Small language models that draft for a large one: both stages, and what they are given."""

from __future__ import annotations

import copy
import json
import math
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)

import mmspec
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.models.transformers.text_folder import load_text
from mmspec.train import recipes
from mmspec.train.heads import objectives, pool
from mmspec.train.text import corpus as text_corpus
from mmspec.train.text import prompts as text_prompts
from mmspec.train.text import teacher as text_teacher
from mmspec.train.text.corpus import Corpus
from mmspec.train.text.drafter import TextAlignRecipe, TextPretrainRecipe
from mmspec.train.text.smaller import smaller
from mmspec.train.trainer import TrainConfig

NEW = 10
OPTIONS = {"steps": 3, "batch_size": 2, "max_new_tokens": NEW}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(text_prompts, "HELD_OUT", 3)
    monkeypatch.setattr(text_teacher, "ASKED", 6)
    monkeypatch.setattr(text_corpus, "LENGTH", 12)
    for name in ("POOL", "USES", "TOGETHER"):
        monkeypatch.setattr(pool, name, 2)


@pytest.fixture
def corpus(tmp_path):
    file = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"text": f"the dog saw {n} cats"}) for n in range(9)]
    file.write_text("\n".join(lines))
    return file


def align(own, tmp_path, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = TrainConfig(tmp_path / "run", 3, 2)
        return TextAlignRecipe(config, own, max_new_tokens=NEW, **options)


def test_text_in_pieces(folder, corpus):
    words = load_text(folder, torch.float32, ["tokenizer"])["tokenizer"]
    found = Corpus(corpus, words)
    said = [words(f"the dog saw {n} cats").input_ids for n in range(9)]
    assert found.ids.tolist() == [i for ids in said for i in [*ids, words.eos_token_id]]
    tokens, mask = found.draw(40, np.random.default_rng(0), 0)
    assert tokens.shape == mask.shape == (40, 12)
    whole = found.ids.unfold(0, 12, 1).tolist()
    assert all(row in whole for row in tokens.tolist())
    many, _ = found.draw(4000, np.random.default_rng(1), 0)
    assert {*map(tuple, many.tolist())} == {*map(tuple, whole)}  # from the first to the last


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_it_begins_with_layers_of_the_target(folder, layers):
    target = load_text(folder, torch.float32)["model"]
    student = smaller(target, {"layers": layers})
    assert len(student.model.layers) == layers
    chosen = {1: [0], 2: [0, 3], 3: [0, 2, 3]}[layers]
    for mine, number in zip(student.model.layers, chosen, strict=True):
        theirs = target.model.layers[number].state_dict()
        assert all(torch.equal(mine.state_dict()[name], theirs[name]) for name in theirs)
    assert torch.equal(student.lm_head.weight, target.lm_head.weight)
    with torch.no_grad():  # its weights are its own
        student.model.norm.weight.add_(1)
    assert not torch.equal(student.model.norm.weight, target.model.norm.weight)


def test_layers_by_other_names():
    """GPT-2 calls them `h`."""
    target = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=4, n_head=2, vocab_size=20)).eval()
    student = smaller(target, {"layers": 2})
    for mine, number in zip(student.transformer.h, (0, 3), strict=True):
        theirs = target.transformer.h[number].state_dict()
        assert all(torch.equal(mine.state_dict()[name], theirs[name]) for name in theirs)
    with pytest.raises(InputError, match="no narrower drafters for GPT2LMHeadModel"):
        smaller(target, {"width": 8})


def test_layers_of_other_kinds():
    """The last layer has experts, and the student's last one would be dense."""
    sizes = dict(hidden_size=16, num_attention_heads=2, num_key_value_heads=2, vocab_size=20)
    sizes |= dict(num_hidden_layers=3, num_experts=2, num_experts_per_tok=1, intermediate_size=8)
    config = Qwen2MoeConfig(
        **sizes, moe_intermediate_size=8, shared_expert_intermediate_size=8, mlp_only_layers=[0, 1]
    )
    with pytest.raises(InputError, match="layers 0, 2 of Qwen2MoeForCausalLM are of other kinds"):
        smaller(Qwen2MoeForCausalLM(config).eval(), {"layers": 2})


def test_a_resumed_run_is_an_unbroken_one(own, tmp_path, monkeypatch):
    """And it remembers what it began from, though its own export lies there by now."""

    def train(out, steps):
        with torch.random.fork_rng():
            return recipes.train(
                "text-drafter", out, stage="align", **{**OPTIONS, "steps": steps}, save_minutes=0.0
            )[0]

    broken = shutil.copytree(own, tmp_path / "broken")
    train(own, 4)
    real = TextAlignRecipe.loss

    def interrupted(self, batch, rng, step):
        if step == 2:
            raise KeyboardInterrupt
        return real(self, batch, rng, step)

    with monkeypatch.context() as patch:
        patch.setattr(TextAlignRecipe, "loss", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(broken, 4)
    assert train(broken, 4)["before"] is None
    ours, theirs = (load_file(one / "drafter/model.safetensors") for one in (broken, own))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert train(broken, 5)["before"] is None


def test_exits_learn_together(own, corpus, tmp_path):
    """Of three layers the first two exits: each is the network of the first layers."""
    config = TrainConfig(tmp_path / "run", 3, 2)
    settings = {"layers": "3", "exits": "2"}
    recipe = TextPretrainRecipe(config, own, data=corpus, settings=settings, max_new_tokens=NEW)
    assert recipe.model.config.exits == [2, 3]
    tokens, mask = recipe.draw(np.random.default_rng(0), 0)
    loss, _ = recipe.loss((tokens, mask), np.random.default_rng(0), 0)
    found = []
    for layers in (2, 3):
        short = copy.deepcopy(recipe.model)
        short.model.layers = short.model.layers[:layers]
        logits = short(tokens, use_cache=False).logits[:, :-1]
        found.append(F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))
    torch.testing.assert_close(loss, torch.stack(found).mean())
    loss.backward()
    assert all(bool(weight.grad.any()) for weight in recipe.model.model.layers.parameters())


def test_a_drafter_with_exits_is_trained_and_drafts(own, tmp_path):
    """Its folder says where they are, and a second training goes on with them."""
    for _ in range(2):
        settings = {} if (own / "drafter").exists() else {"exits": "2"}
        with torch.random.fork_rng():
            recipes.train(
                "text-drafter", own, stage="align", settings={"layers": "2", **settings}, **OPTIONS
            )
        shutil.rmtree(own / "training")
        saved = json.loads((own / "drafter/config.json").read_text())
        assert saved["exits"] == [1, 2]
    pipe = mmspec.TextPipeline.from_pretrained(own)
    truth = pipe("the dog", max_new_tokens=NEW).text
    pipe.enable_speculation(mmspec.SpecConfig("s2d", exit_confidence=(0.1,)))
    out = pipe("the dog", max_new_tokens=NEW)
    assert out.text == truth
    assert out.stats.fault is None
    assert sum(out.stats.drafted) > 0
    for exits in ("0", "3", "x"):
        with pytest.raises(InputError, match=f"of a drafter .*not '?{exits}'?"):
            align(own, tmp_path, settings={"layers": "2", "exits": exits})


def test_narrower(folder):
    target = load_text(folder, torch.float32)["model"]
    student = smaller(target, {"layers": 1, "width": 32})
    config = student.config
    assert (config.hidden_size, config.head_dim, config.intermediate_size) == (32, 16, 48)
    assert (config.num_attention_heads, config.num_key_value_heads) == (2, 1)
    ids = torch.randint(3, config.vocab_size, (2, 5))
    assert student(ids).logits.shape == target(ids).logits.shape


def test_loss_on_text(own, corpus, tmp_path):
    config = TrainConfig(tmp_path / "run", 3, 2)
    recipe = TextPretrainRecipe(config, own, data=corpus, max_new_tokens=NEW)
    tokens, mask = recipe.draw(np.random.default_rng(0), 0)
    loss, _ = recipe.loss((tokens, mask), np.random.default_rng(0), 0)
    logits = recipe.model(tokens).logits
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("objective", [None, "kl"])
def test_loss_on_answers(own, tmp_path, objective):
    """Row by row, unpadded, against transformers' own passes of both models."""
    recipe = align(own, tmp_path, objective=objective)
    target, student = recipe.teacher.model, recipe.model
    found, accepted = [], []
    batch = recipe.pool.batch(0)
    for row in range(2):
        ids = batch.tokens[row, batch.mask[row]][None]
        count = int(batch.answer[row].sum())
        places = slice(-count - 1, -1)
        p = target(ids).logits[0, places].softmax(-1)
        logits = student(ids).logits[0, places]
        if objective is None:
            found += F.cross_entropy(logits, ids[0, -count:], reduction="none").tolist()
        else:
            found += (-(p * logits.log_softmax(-1)).sum(-1)).tolist()
        accepted += torch.minimum(p, logits.softmax(-1)).sum(-1).tolist()
    loss, metrics = recipe.loss(0, np.random.default_rng(0), 0)
    near = {"rel": 2e-3}  # what the target says is kept as halves
    assert float(loss.detach()) == pytest.approx(sum(found) / len(found), **near)
    assert metrics["acceptance"] == pytest.approx(sum(accepted) / len(accepted), **near)
    loss.backward()
    assert all(weight.grad is not None for weight in student.parameters())
    assert all(weight.grad is None for weight in target.parameters())


def test_a_reference_chooses_places(own, tmp_path):
    """The 40 % at which it is ahead the most, by transformers' own passes of both drafters."""
    config = load_text(own, torch.float32, ["model"])["model"].config
    torch.manual_seed(3)
    config.num_hidden_layers = 1
    other = LlamaForCausalLM(config)
    other.save_pretrained(own / "first")
    recipe = align(own, tmp_path, objective="tv", reference="first")
    batch, found, gains = recipe.pool.batch(0), [], []
    lesson = recipe.teacher.on_device(batch)
    for row in range(2):
        ids = batch.tokens[row, batch.mask[row]][None]
        count = int(batch.answer[row].sum())
        places = slice(-count - 1, -1)
        drawn = lesson.ahead(1)[0][row][lesson.ahead(1)[1][row]]
        p = lesson.law_at(drawn)
        q, q_ref = (m(ids).logits[0, places].softmax(-1) for m in (recipe.model, other))
        found += (p - q).abs().sum(-1).tolist()
        gains += ((p * (p / q).log()).sum(-1) - (p * (p / q_ref).log()).sum(-1)).tolist()
    best = sorted(range(len(gains)), key=gains.__getitem__)[-math.ceil(0.4 * len(gains)) :]
    assert 2 <= len(best) < len(gains)
    loss, _ = recipe.loss(0, np.random.default_rng(0), 0)
    expected = sum(found[n] for n in best) / len(best)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)
    assert float(loss.detach()) != pytest.approx(sum(found) / len(found), rel=1e-3)
    loss.backward()
    assert all(weight.grad is None for weight in recipe.reference.parameters())


def test_places_may_be_drawn_in_a_references_place(own, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        objectives, "drawn", lambda places: seen.append(places) or torch.tensor([1, 0])
    )
    recipe = align(own, tmp_path, objective="tv", reference="random")
    loss, _ = recipe.loss(0, np.random.default_rng(0), 0)
    (places,) = seen
    whole = (places.logits.detach().softmax(-1) - places.law).abs().sum(-1)
    assert len(whole) > 2
    assert float(loss.detach()) == pytest.approx(float(whole[:2].mean()))


def test_a_drafter_learns_beside_the_first_one(own, capsys):
    """By commands; it begins where the first one began, and takes its place."""
    command = ["train", "text-drafter", "--stage", "align", "--pipeline", str(own)]
    command += ["--set", "layers=1", "--steps", "2", "--batch-size", "2", "--max-new-tokens", "5"]
    with torch.random.fork_rng():
        assert main(command) == 0
        first = load_file(own / "drafter/model.safetensors")
        shutil.rmtree(own / "training" / "align")
        assert main([*command, "--objective", "kl", "--reference", "drafter"]) == 0
    record = json.loads((own / "drafter" / "training.json").read_text())
    assert record["before"] is None
    second = load_file(own / "drafter/model.safetensors")
    assert any(not torch.equal(first[name], second[name]) for name in first)
    capsys.readouterr()


def test_a_reference_of_other_words(own):
    config = load_text(own, torch.float32, ["model"])["model"].config
    config.vocab_size += 2
    LlamaForCausalLM(config).save_pretrained(own / "first")
    with pytest.raises(InputError, match=r"has a vocabulary of .* name another reference"):
        recipes.train("text-drafter", own, stage="align", reference="first", **OPTIONS)


def test_the_target_itself_is_always_accepted(own, tmp_path):
    recipe = align(own, tmp_path, settings={"layers": "3"})
    figures = recipe.evaluate(recipe.model)
    assert figures["held_out_acceptance_length_greedy"] < 1 + 7
    recipe.model = recipe.teacher.model
    figures = recipe.evaluate(recipe.model)
    assert {v for n, v in figures.items() if "greedy_at_depth" in n} == {1.0}


def test_both_stages_to_a_pipeline(own, corpus):
    options = {**OPTIONS, "settings": {"layers": "1"}}
    (first,) = recipes.train("text-drafter", own, stage="pretrain", data=corpus, **options)
    assert "corpus.jsonl" in (own / "drafter" / "README.md").read_text()
    (second,) = recipes.train("text-drafter", own, stage="align", objective="tv", **options)
    assert second["before"]["component"] == "drafter"
    assert second["before"]["step"] == first["step"] == 3
    for record in (first, second):
        assert 1 <= record["held_out"]["held_out_acceptance_length_sampled"] <= NEW
    assert "prompts that the model wrote itself" in (own / "drafter" / "README.md").read_text()
    pipe = mmspec.TextPipeline.from_pretrained(own, torch_dtype=torch.float64)
    asked = ["the cat saw", "the dog and the cat saw the dog"]
    pipe.enable_speculation("plain")
    plain = pipe(asked, max_new_tokens=24)
    pipe.enable_speculation("draft")
    out = pipe(asked, max_new_tokens=24)
    assert out.tokens == plain.tokens
    assert sum(out.stats.drafted) > 0


def test_answers_are_those_that_heads_learn_from(own, monkeypatch):
    recipes.train("text-head", own, stage="medusa", **OPTIONS)

    def written(self, number):
        raise AssertionError("answers were written again")

    monkeypatch.setattr("mmspec.train.text.lessons.TextLessons._written", written)
    recipes.train("text-drafter", own, stage="align", **OPTIONS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stage": "pretrain"}, "give --data FILE"),
        ({"stage": "align", "init": "draft"}, "did you mean 'drafter'"),
        ({"stage": "align", "init": "drafter"}, "no folder .*drafter"),
        ({"stage": "align", "reference": "draft"}, "did you mean 'drafter'"),
        ({"stage": "align", "reference": "drafter"}, "no folder .*drafter"),
        (
            {"stage": "pretrain", "reference": "drafter"},
            "is for one stage: .*align of text-drafter",
        ),
        ({"stage": "align", "objective": "kll"}, "did you mean 'kl'"),
        ({"stage": "align", "settings": {"layer": "1"}}, "setting of a drafter"),
        ({"stage": "align", "settings": {"layers": "two"}}, "is a whole number, not 'two'"),
        ({"stage": "align", "settings": {"layers": "4"}}, "must be from 1 to 3, not 4"),
        ({"stage": "align", "settings": {"width": "33"}}, "must be a multiple of 32, not 33"),
        ({"stage": "align", "language": "smollm2"}, "is for one stage: adapter"),
    ],
)
def test_options_that_cannot_be(own, options, message):
    with pytest.raises(InputError, match=message):
        recipes.train("text-drafter", own, **OPTIONS, **options)
    assert not (own / "drafter").exists()


def test_separators_within_a_text(folder, tmp_path):
    """JSON lets U+2028 and its like stand as they are."""
    file = tmp_path / "corpus.jsonl"
    said = "the cat\u2028saw\x85the dog"
    file.write_text(json.dumps({"text": said}, ensure_ascii=False) + "\n")
    words = load_text(folder, torch.float32, ["tokenizer"])["tokenizer"]
    assert words.decode(Corpus(file, words).ids, skip_special_tokens=True) == said


def test_a_target_that_can_t_ask_itself(own, corpus):
    """It is said before hours of training."""
    (own / "chat_template.jinja").write_text("{{ messages[0]['content'] | upper }}")
    with pytest.raises(InputError, match="does not show a user's words"):
        recipes.train("text-drafter", own, stage="pretrain", data=corpus, **OPTIONS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no text"),
        ('{"text": "a"}\n{"prompt": "b"}', 'line 2 must be {"text": text}'),
        ('{"text": " "}', "line 1 must be"),
    ],
)
def test_lines_that_are_no_text(own, tmp_path, text, message):
    file = tmp_path / "corpus.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        recipes.train("text-drafter", own, stage="pretrain", data=file, **OPTIONS)


def test_from_the_command(own, corpus, capsys):
    command = ["train", "text-drafter", "--stage", "pretrain", "--pipeline", str(own)]
    command += ["--data", str(corpus), "--set", "layers=1", "--steps", "1", "--batch-size", "2"]
    with torch.random.fork_rng():
        assert main([*command, "--max-new-tokens", "5"]) == 0
    assert '"component": "drafter"' in (own / "drafter" / "training.json").read_text()
    capsys.readouterr()
