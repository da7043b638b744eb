"""Draft heads over language models: prompts that the model writes, lessons that are kept, runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import texts
import torch
from safetensors.torch import load_file, save_file

import mmspec
from mmspec.cli.heads import vllm_config
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.models.heads.loading import load_head
from mmspec.models.transformers.text_folder import load_text
from mmspec.train import recipes
from mmspec.train.heads import pool
from mmspec.train.heads import recipe as head_recipe
from mmspec.train.heads.head_batch import HeadBatch
from mmspec.train.heads.recipe import HeadRecipe
from mmspec.train.parallel import Processes
from mmspec.train.text import head as text_head
from mmspec.train.text import prompts as text_prompts
from mmspec.train.text import teacher as text_teacher
from mmspec.train.text.head import TextHeadRecipe
from mmspec.train.text.lessons import TextLessons, small
from mmspec.train.text.teacher import TextTeacher
from mmspec.train.trainer import TrainConfig, Trainer

METHODS = list(recipes.STAGES["text-head"])
NEW = 10  # tokens of an answer
SETTINGS = {"dflash": {"block": "3"}, "eagle3": {"vocabulary": "40"}}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(text_prompts, "HELD_OUT", 3)
    monkeypatch.setattr(text_teacher, "ASKED", 6)
    monkeypatch.setattr(text_head, "COUNTED", 2)
    monkeypatch.setattr(pool, "POOL", 2)
    monkeypatch.setattr(pool, "USES", 2)
    monkeypatch.setattr(pool, "TOGETHER", 2)


@pytest.fixture
def teacher(folder):
    return TextTeacher(*load_text(folder, torch.float32).values(), NEW)


def test_prompts_stand_in_the_place_of_a_user(teacher):
    seeds = list(range(40))
    prompts = teacher.invented(seeds)
    told = [{"role": "user", "content": "*"}]
    said = teacher.tokenizer.apply_chat_template(told, add_generation_prompt=True, tokenize=False)
    before, behind = (
        teacher.tokenizer(part, add_special_tokens=False)["input_ids"] for part in said.split("*")
    )
    lengths = set()
    for ids in prompts:
        assert ids[: len(before)] == before
        assert ids[-len(behind) :] == behind
        words = ids[len(before) : -len(behind)]
        assert teacher.tokenizer.eos_token_id not in words
        lengths.add(len(words))
    assert max(lengths) == 6  # and those that end earlier end there
    assert teacher.invented(seeds[5:7]) == prompts[5:7]
    assert len({tuple(ids) for ids in prompts}) > 30


def test_prompts_follow_the_law(teacher):
    """First words of many, against the model's own law behind the template's start."""
    prompts = teacher.invented(list(range(600)))
    told = [{"role": "user", "content": "*"}]
    said = teacher.tokenizer.apply_chat_template(told, tokenize=False)
    before = teacher.tokenizer(said.split("*")[0], add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = teacher.model(torch.tensor([before])).logits[0, -1]
    kept = logits.topk(text_teacher.LIKELY)
    first = torch.tensor([ids[len(before)] for ids in prompts])
    for p, token in zip(kept.values.softmax(0)[:4].tolist(), kept.indices[:4], strict=True):
        share = float((first == token).float().mean())
        assert share == pytest.approx(p, abs=4 * (p * (1 - p) / 600) ** 0.5)


def test_without_a_template_it_goes_on_from_its_start(teacher):
    teacher.tokenizer.chat_template = None
    prompts = teacher.invented([0, 1])
    assert all(ids[0] == teacher.tokenizer.bos_token_id and len(ids) <= 7 for ids in prompts)
    teacher.tokenizer.bos_token = teacher.tokenizer.eos_token = None
    with pytest.raises(InputError, match="neither a chat template nor a start token"):
        teacher.invented([0])


def test_a_template_that_changes_the_words(teacher):
    teacher.tokenizer.chat_template = "{{ messages[0]['content'] | upper }}"
    with pytest.raises(InputError, match="does not show a user's words as they are"):
        teacher.invented([0])


@pytest.fixture
def build(own, tmp_path):
    def made(method, steps=6, rate=None, run="run", **config):
        config = TrainConfig(tmp_path / run, steps, 4, ema=0.5, warmup=1, **config)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            settings = SETTINGS.get(method, {})
            made = {"settings": settings, "rate": rate, "max_new_tokens": NEW}
            return TextHeadRecipe(config, own, method, **made)

    return made


def test_all_processes_draft_the_first_ones_tokens(build):
    """Each has counted in data of its own, and has the first one's output layer."""
    first, other = build("eagle3"), build("eagle3", seed=1_000_003, run="other")
    ids = first.model.vocabulary.ids
    assert not torch.equal(other.model.vocabulary.ids, ids)
    trainer = Trainer(other, other.config)
    sent = {
        id(x): y
        for parts in ("parameters", "buffers")
        for x, y in zip(getattr(other.model, parts)(), getattr(first.model, parts)(), strict=True)
    }

    class Second(Processes):
        def told(self, tensor, index):
            assert index == 0
            return sent.get(id(tensor), ids)

    trainer.processes = Second(1, 2)
    trainer._share_first()
    for model in (trainer.model, trainer.average.module):
        assert torch.equal(model.vocabulary.ids, ids)
    own, its = (list(recipe.model.parameters()) for recipe in (other, first))
    assert all(map(torch.equal, own, its))


def test_a_resumed_run_drafts_the_tokens_that_it_began_with(build):
    """Though the answers that they were counted in are made anew, and are others."""
    trainer = Trainer(build("eagle3"), build("eagle3").config)
    ids = trainer.model.vocabulary.ids.clone()
    trainer.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    trainer.save()
    again = Trainer(build("eagle3"), build("eagle3").config)
    for model in (again.model, again.average.module):
        model.vocabulary.ids = ids.flip(0)
    again.load()
    assert all(
        torch.equal(model.vocabulary.ids, ids) for model in (again.model, again.average.module)
    )


def test_the_mass_is_of_lessons_where_the_model_is(build, monkeypatch):
    """On a GPU lessons lie on the processor."""
    recipe = build("eagle3")
    moved, seen = recipe.teacher.on_device, list[HeadBatch]()

    def flat(batch):
        seen.append(moved(batch))
        return replace(seen[-1], features=torch.zeros_like(seen[-1].features))

    monkeypatch.setattr(recipe.teacher, "on_device", flat)
    size = len(recipe.teacher.model.get_output_embeddings().weight)
    assert recipe.vocabulary_mass() == pytest.approx(40 / size)


@pytest.mark.parametrize("method", ["eagle3", "medusa"])
def test_a_lesson_is_what_the_model_itself_computes(build, method):
    """Made and as it lies on disk: tokens, states and laws of transformers' own forward pass."""
    recipe = build(method)
    model, reads = recipe.teacher.model, recipe.model.reads
    greedy = []
    for turn in range(2):
        examples = recipe.lessons(0, True)
        assert [len(example.mask) for example in examples] == [4, 4]
        for example in examples:
            assert example.mask.any(0).all()
            for row in range(4):
                real, answered = example.mask[row], example.answer[row]
                ids = example.tokens[row, real]
                table = model.get_input_embeddings().weight
                assert torch.equal(example.embedded[row, real], table[ids])
                with torch.no_grad():
                    out = model(input_ids=ids[None], output_hidden_states=True)
                count = int(answered.sum())
                assert 1 <= count <= NEW
                states = example.features[row, real][:-1].float()
                near = {"atol": 2e-2, "rtol": 2e-3}  # kept as halves
                assert torch.allclose(states, out.hidden_states[-1][0, :-1], **near)
                read = torch.cat([out.hidden_states[n][0, :-1] for n in reads or (-1,)], dim=-1)
                assert torch.allclose(example.states[row, real][:-1].float(), read, **near)
                best = out.logits[0, -count - 1 : -1].argmax(-1)
                greedy.append((turn, bool(torch.equal(best, ids[-count:]))))
    assert greedy[:8] == [(0, same) for _, same in greedy[8:]]
    assert {same for _, same in greedy} == {True, False}  # of all temperatures


def test_states_too_large_for_halves_are_kept():
    """As those of some large models are."""
    states = torch.tensor([[1.0, 3e5, -7.0]])
    kept = small(states)
    assert kept.element_size() == 2
    assert torch.allclose(kept.float(), states, rtol=4e-3)
    assert small(states.clamp_max(6e4)).dtype == torch.float16


def test_lessons_are_kept_for_other_heads(own, monkeypatch):
    written = []
    real = TextLessons._written
    monkeypatch.setattr(TextLessons, "_written", lambda self, n: written.append(n) or real(self, n))
    options = {"steps": 4, "batch_size": 2, "max_new_tokens": NEW}
    recipes.train("text-head", own, stage="eagle3", **options)
    assert written == [0]
    for method in ("eagle3", "medusa", "hydra", "eagle"):
        shutil.rmtree(own / "training" / method, ignore_errors=True)
        recipes.train("text-head", own, stage=method, **options)
    assert written == [0]
    recipes.train("text-head", own, stage="medusa", **(options | {"steps": 5}))
    assert written == [0, 2]
    shutil.rmtree(own / "training" / "medusa")
    recipes.train("text-head", own, stage="medusa", **(options | {"seed": 3}))
    assert written == [0, 2, 0]
    # a model that has been trained further says other things
    model = load_text(own, torch.float32, ["model"])["model"]
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.1)
    model.save_pretrained(own)
    shutil.rmtree(own / "training" / "medusa")
    recipes.train("text-head", own, stage="medusa", **options)
    assert written == [0, 2, 0, 0]


def test_lessons_that_come_again_are_written_once(own, monkeypatch):
    written = []
    real = TextLessons._written
    monkeypatch.setattr(TextLessons, "_written", lambda self, n: written.append(n) or real(self, n))
    options = {"steps": 16, "batch_size": 2, "max_new_tokens": NEW, "repeat": 4}
    recipes.train("text-head", own, stage="medusa", **options)
    assert written == [0]  # two batches, which sixteen steps learn from
    card = (own / "heads/medusa/README.md").read_text()
    assert "4 answers of the target's own, about 8 times each" in card


def test_other_prompts_make_other_lessons(own, tmp_path):
    """Of the same number, in files of the same name."""
    found = []
    for n, word in enumerate(("cat", "dog")):
        file = tmp_path / str(n) / "asked.jsonl"
        file.parent.mkdir()
        file.write_text("".join(json.dumps({"prompt": f"{word} {n}"}) + "\n" for n in range(3)))
        config = TrainConfig(tmp_path / "run", 2, 2)
        recipe = TextHeadRecipe(config, own, "medusa", data=file, max_new_tokens=NEW)
        (example, *_) = recipe.lessons(0, True)
        found.append(recipe.teacher.tokenizer.decode(example.tokens[0][example.mask[0]]))
    assert "user\ncat" in found[0]
    assert "user\ndog" in found[1]


@pytest.mark.parametrize("method", METHODS)
def test_a_trained_head_drafts_what_plain_says(own, method):
    options = {"settings": SETTINGS.get(method, {}), "max_new_tokens": NEW}
    (record,) = recipes.train("text-head", own, stage=method, steps=3, batch_size=3, **options)
    for how in ("greedy", "sampled"):
        assert 1 <= record["held_out"][f"held_out_acceptance_length_{how}"] <= NEW
    card = (own / "heads" / method / "README.md").read_text()
    assert "prompts that the model wrote itself" in card
    pipe = mmspec.TextPipeline.from_pretrained(own, torch_dtype=torch.float64)
    asked = ["the cat saw", "the dog and the cat saw the dog"]
    pipe.enable_speculation("plain")
    plain = pipe(asked, max_new_tokens=24)
    pipe.enable_speculation(method)
    out = pipe(asked, max_new_tokens=24)
    assert out.tokens == plain.tokens
    assert sum(out.stats.drafted) > 0


TRIMMED = {
    "medusa": ("medusa", {}),
    "hydra": ("hydra", {}),
    "dflash": ("dflash", {}),
    "dflash, the target's rows": ("dflash", {"output": "target"}),
    "eagle3, the target's rows": ("eagle3", {"output": "target", "intermediate_size": "24"}),
}


@pytest.mark.parametrize("case", TRIMMED)
def test_heads_with_a_smaller_vocabulary_draft_what_plain_says(own, case):
    """From training to a pipeline, which accepts no token that they do not draft."""
    method, settings = TRIMMED[case]
    options = {"settings": {"vocabulary": "20", **settings}, "max_new_tokens": NEW}
    (record,) = recipes.train("text-head", own, stage=method, steps=3, batch_size=3, **options)
    assert 0 < record["held_out"]["held_out_vocabulary_mass"] < 1
    head = load_head(own / "heads" / method)
    assert len(head.vocabulary.ids) == 20
    pipe = mmspec.TextPipeline.from_pretrained(own, torch_dtype=torch.float64)
    asked = ["the cat saw", "the dog and the cat saw the dog"]
    pipe.enable_speculation("plain")
    plain = pipe(asked, max_new_tokens=24)
    pipe.enable_speculation(method)
    out = pipe(asked, max_new_tokens=24)
    assert out.tokens == plain.tokens
    assert out.stats.fault is None
    assert sum(out.stats.drafted) > 0


@pytest.mark.parametrize("method", ["eagle3", "dflash"])
def test_an_output_layer_that_is_the_targets_stays_so(own, method, capsys):
    """Its files leave the rows out, training does not move them, and it goes on from its own."""
    options = {"max_new_tokens": NEW, "batch_size": 3, "stage": method}
    options["settings"] = {"vocabulary": "20", "output": "target"}
    recipes.train("text-head", own, steps=3, **options)
    model = load_text(own, torch.float32)["model"]
    first = load_head(own / "heads" / method)
    assert first.borrows
    assert "lm_head.weight" not in first.network.state_dict()
    first.meet(model)
    rows = model.get_output_embeddings().weight[first.vocabulary.ids]
    assert torch.equal(first.network.lm_head.weight, rows)
    assert not first.network.lm_head.weight.requires_grad
    again = own / "again"
    first.save_pretrained(again)
    assert "lm_head.weight" not in load_head(again).network.state_dict()
    with pytest.raises(InputError, match="rows of their target's output layer"):
        vllm_config(first, "head")
    weights = load_file(again / "model.safetensors")
    for wrong in (
        {k: v for k, v in weights.items() if k != "d2t"},
        weights | {"lm_head.weight": torch.zeros(20, rows.shape[1])},
    ):
        save_file(wrong, again / "model.safetensors")
        with pytest.raises(InputError, match="stores a map d2t and no lm_head"):
            load_head(again)
    shutil.rmtree(own / "training" / method)
    recipes.train("text-head", own, steps=1, init=method, reference=method, **options)
    second = load_head(own / "heads" / method)
    assert torch.equal(second.vocabulary.ids, first.vocabulary.ids)
    assert not torch.equal(second.network.fc.weight, first.network.fc.weight)


def test_a_run_that_goes_on_has_the_reference_that_it_began_with(own, monkeypatch):
    """Though it has been exported over it."""
    how = {"stage": "medusa", "batch_size": 2, "max_new_tokens": NEW}
    recipes.train("text-head", own, steps=1, **how)
    first = load_head(own / "heads/medusa").state_dict()
    shutil.rmtree(own / "training" / "medusa")
    how |= {"reference": "medusa", "seed": 1}
    recipes.train("text-head", own, steps=2, **how)
    exported = load_head(own / "heads/medusa").state_dict()
    assert any(not torch.equal(exported[name], first[name]) for name in first)
    seen, read = [], HeadRecipe._head

    def heard(recipe, folder):
        seen.append(read(recipe, folder))
        return seen[-1]

    monkeypatch.setattr(HeadRecipe, "_head", heard)
    recipes.train("text-head", own, steps=3, **how)
    found = seen[-1].state_dict()
    assert all(torch.equal(found[name], first[name]) for name in first)


def test_a_smaller_vocabulary_is_what_the_model_says_most(own, build, monkeypatch):
    """Its answers count, and not what it is asked."""
    monkeypatch.setattr(text_head, "COUNTED", 8)
    recipe = build("eagle3")
    counts = torch.zeros(len(recipe.teacher.tokenizer), dtype=torch.long)
    for example in (one for first in range(0, 8, 2) for one in recipe.lessons(first, True)):
        counts += example.tokens[example.answer].bincount(minlength=len(counts))
    drafted = recipe.model.vocabulary.ids
    assert len(drafted) == 40
    assert recipe.teacher.tokenizer.eos_token_id in drafted
    others = [token for token in range(len(counts)) if token not in drafted.tolist()]
    end = recipe.teacher.tokenizer.eos_token_id
    least = min(int(counts[token]) for token in drafted.tolist() if token != end)
    assert least >= int(counts[others].max()) > 0
    lm_head = recipe.teacher.model.get_output_embeddings().weight
    assert torch.equal(recipe.model.network.lm_head.weight, lm_head[drafted])
    with torch.random.fork_rng():
        record = Trainer(recipe, recipe.config).run()
    mass = record["held_out"]["held_out_vocabulary_mass"]
    assert 0 < mass < 1
    head = load_head(own / "heads" / "eagle3")
    assert torch.equal(head.vocabulary.ids, drafted)


def test_the_mass_of_a_vocabulary_is_the_models_own(build):
    """The mean probability that the model's own answers give the tokens that are drafted."""
    recipe = build("eagle3")
    found, ids = [], recipe.model.vocabulary.ids
    for batch in recipe.teacher.lessons(
        recipe.teacher.encoded(recipe.prompts.held_out()), [[]] * 3, [0, 1, 2], 3
    ):
        for row in range(3):
            own, count = batch.tokens[row, batch.mask[row]], int(batch.answer[row].sum())
            with torch.no_grad():
                logits = recipe.teacher.model(own[None]).logits[0, -count - 1 : -1]
            found += logits.softmax(-1)[:, ids].sum(-1).tolist()
    mass = recipe.vocabulary_mass()
    assert mass == pytest.approx(sum(found) / len(found), abs=1e-4)


@pytest.mark.parametrize("objective", ["tv", "tvd++", "log-acceptance", "tokens"])
def test_objectives_by_name(own, objective):
    options = {"steps": 2, "batch_size": 2, "max_new_tokens": NEW, "objective": objective}
    (record,) = recipes.train("text-head", own, stage="eagle3", **options)
    assert record["held_out"]["held_out_acceptance_length_greedy"] >= 1


def test_a_reference_chooses_places(own):
    options = {"stage": "eagle3", "steps": 2, "batch_size": 2, "max_new_tokens": NEW}
    recipes.train("text-head", own, **options)
    shutil.copytree(own / "heads" / "eagle3", own / "heads" / "first")
    shutil.rmtree(own / "training" / "eagle3")
    (record,) = recipes.train("text-head", own, reference="first", seed=1, **options)
    assert record["held_out"]["held_out_acceptance_length_greedy"] >= 1


@pytest.mark.parametrize("method", ["falcon", "dflash"])
@pytest.mark.parametrize("what", ["init", "reference"])
def test_a_head_of_other_blocks_is_no_beginning_and_no_reference(own, method, what):
    """What it fills in a call is not what the new one would: its places mean other things."""
    options = {"stage": method, "steps": 1, "batch_size": 2, "max_new_tokens": NEW}
    recipes.train("text-head", own, settings={"block": "3"}, **options)
    shutil.rmtree(own / "training")
    with pytest.raises(InputError, match="--set block=3"):
        recipes.train("text-head", own, settings={"block": "4"}, **{what: method}, **options)


def test_resumed_run_is_an_unbroken_one(build, tmp_path, monkeypatch):
    whole = build("eagle3")
    with torch.random.fork_rng():
        record = Trainer(whole, whole.config).run()
    recipe = build("eagle3")
    broken = replace(recipe.config, out=tmp_path / "broken", save_minutes=0.0)
    real = recipe.loss

    def interrupted(batch, rng, step):
        if step == 4:
            raise KeyboardInterrupt
        return real(batch, rng, step)

    monkeypatch.setattr(recipe, "loss", interrupted)
    with pytest.raises(KeyboardInterrupt), torch.random.fork_rng():
        Trainer(recipe, broken).run()
    again = build("eagle3")
    with torch.random.fork_rng():
        torch.manual_seed(8)
        resumed = Trainer(again, broken).run()
    assert resumed["held_out"] == record["held_out"]
    for ours, theirs in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_prompts_of_ones_own(own, tmp_path, capsys):
    file = tmp_path / "asked.jsonl"
    lines = [json.dumps({"prompt": f"the cat saw {n}"}) for n in range(4)]
    file.write_text("\n".join(lines))
    options = ["--method", "medusa", "--set", "heads=2", "--steps", "1", "--batch-size", "2"]
    options += ["--max-new-tokens", "5", "--pipeline", str(own), "--data", str(file)]
    with torch.random.fork_rng():
        assert main(["train", "text-head", *options]) == 0
    capsys.readouterr()
    assert load_head(own / "heads" / "medusa").network.count == 2
    card = (own / "heads" / "medusa" / "README.md").read_text()
    assert "3 prompts of asked.jsonl" in card


def test_a_prompt_that_is_too_long_is_named_at_the_start(own, tmp_path, teacher, monkeypatch):
    lines = [{"prompt": "the cat"}] * 40
    lines[24] = {"prompt": "a" * 600}
    file = tmp_path / "asked.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(InputError, match=r"prompt 25 \('aaa.*it is too long for this model"):
        recipes.train("text-head", own, stage="medusa", data=file, steps=1)
    lines[24] = {"prompt": "the cat saw the dog"}
    file.write_text("\n".join(map(json.dumps, lines)))
    together = repr(text_prompts.FilePrompts(file, teacher)._ids([one["prompt"] for one in lines]))
    sizes = []
    process = text_prompts.process_texts

    def processed(tokenizer, texts, device):
        sizes.append(len(texts))
        return process(tokenizer, texts, device)

    monkeypatch.setattr(text_prompts, "process_texts", processed)
    assert text_prompts.FilePrompts(file, teacher).key == together
    assert {*sizes} == {1}  # all of a large file, padded to the longest, would fill the memory


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}', "has 1 prompts"),
        ('{"prompt": "a"}\n{"question": "b"}', 'line 2 must be {"prompt": text}'),
        ('{"prompt": "a"}\n[]', "line 2 must be"),
        ('{"prompt": "a"}\n{"prompt": " "}', "line 2 must be"),
    ],
)
def test_lines_that_are_no_prompts(own, tmp_path, text, message):
    file = tmp_path / "asked.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        recipes.train("text-head", own, stage="medusa", data=file, steps=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stage": "vispec"}, "unknown stage 'vispec'"),
        ({"stage": "eagle3", "objective": "kll"}, "did you mean 'kl'"),
        ({"stage": "eagle3", "reference": "eagle3"}, "heads/eagle3"),
        ({"stage": "eagle3", "settings": {"vocabulary": "9999"}}, "vocabulary must be below"),
        ({"stage": "eagle", "settings": {"vocabulary": "40"}}, "setting of eagle"),
        (
            {"stage": "eagle", "settings": {"num_layers": "0"}},
            "num_layers of eagle must be 1 or more",
        ),
        ({"stage": "medusa", "settings": {"blocks": "0"}}, "blocks of medusa must be 1 or more"),
        ({"stage": "medusa", "settings": {"heads": "0"}}, "heads of medusa must be 1 or more"),
        ({"stage": "eagle3", "settings": {"output": "mine"}}, "output must be own or target"),
        ({"stage": "dflash", "settings": {"output": "mine"}}, "output must be own or target"),
    ],
)
def test_options_that_cannot_be(own, options, message):
    with pytest.raises(InputError, match=message):
        recipes.train("text-head", own, steps=1, batch_size=2, max_new_tokens=NEW, **options)


@pytest.mark.parametrize("method", ["eagle3", "medusa", "hydra", "dflash"])
def test_a_vocabulary_takes_counts(method):
    """Of a vision-language model's answers nothing is kept to count in."""
    with pytest.raises(InputError, match="takes counts of tokens"):
        head_recipe.new_head(method, texts.model(texts.tokenizer()), {"vocabulary": "40"})
