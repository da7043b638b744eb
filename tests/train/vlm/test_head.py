"""The recipe of draft heads: what an example holds, curricula, short runs of every method, data."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from mmspec.cli.main import main
from mmspec.draft.feature.head_model import head_model
from mmspec.draft.null import NullDrafter
from mmspec.engine.warp import Warp
from mmspec.errors import InputError
from mmspec.methods import parts
from mmspec.models.heads.columns import Images
from mmspec.models.heads.loading import head_class, load_head
from mmspec.models.transformers.prompt_inputs import process_questions
from mmspec.models.transformers.vlm_folder import load_vlm
from mmspec.train import recipes
from mmspec.train.tokenizers import exchange_tokenizer
from mmspec.train.trainer import TrainConfig, Trainer
from mmspec.train.vlm import head as vlm_head
from mmspec.train.vlm import prompts as vlm_prompts
from mmspec.train.vlm import target as vlm_target
from mmspec.train.vlm.curriculum import CURRICULA
from mmspec.train.vlm.head import VlmHeadRecipe, chain_of
from mmspec.train.vlm.prompts import FilePrompts, ShapesPrompts
from mmspec.train.vlm.teacher import Teacher

METHODS = list(parts("head"))
NEW = 10  # tokens of an answer
SETTINGS = {"flash": {"latents": "3", "block": "3"}, "dflash": {"block": "3"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny LLaVA of random weights, whose words depend on what it sees and on each other."""
    path = tmp_path_factory.mktemp("vlm")
    words = exchange_tokenizer()
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        torch.manual_seed(0)
        small = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2)
        patch.setattr(vlm_target, "SIDE", 32)
        patch.setattr(vlm_target, "VISION", {**small, "num_attention_heads": 2})
        patch.setattr(vlm_target, "TEXT", {"target": {**small, "num_attention_heads": 2}})
        model = vlm_target.build_model("target", words)
        for weight in model.parameters():
            nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.5)
        model.save_pretrained(path)
        vlm_target.build_processor(words).save_pretrained(path)
    return path


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(vlm_prompts, "HELD_OUT", 3)
    monkeypatch.setattr(vlm_head, "POOL", 2)
    monkeypatch.setattr(vlm_head, "USES", 2)


@pytest.fixture
def build(folder, tmp_path, quick):
    """Recipes whose head has the same first weights every time."""

    def made(method, steps=6, rate=None, **config):
        config = TrainConfig(tmp_path / "run", steps, 4, ema=0.5, warmup=1, **config)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            settings = SETTINGS.get(method, {})
            own = {"settings": settings, "rate": rate, "max_new_tokens": NEW}
            return VlmHeadRecipe(config, folder, method, **own)

    return made


# --- what the teacher shows -----------------------------------------------------------------------


@pytest.mark.parametrize("seen", [True, False])
def test_a_lesson_is_what_the_model_itself_computes(folder, seen):
    """Row by row against transformers' own forward pass over prompt and answer, unpadded."""
    model, processor = load_vlm(folder, torch.float32).values()
    teacher = Teacher(model, processor, NEW)
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
        assert torch.allclose(teacher._logits(states), out.logits[0, :-1], atol=1e-4)
        greedy.append(torch.equal(out.logits[0, prompt - 1 : -1].argmax(-1), answer))
    assert greedy[::2] == [True, True, True]
    assert not all(greedy[1::2])  # drawn
    assert len(lengths) > 2


def test_drawn_answers_follow_the_law(folder):
    """First words of many answers to one question, against the model's own law."""
    model, processor = load_vlm(folder, torch.float32).values()
    teacher = Teacher(model, processor, 1)
    one = ShapesPrompts(32).draw(np.random.default_rng(3), 1)
    many = vlm_prompts.Questions(one.pictures * 400, one.texts * 400)
    (example,) = teacher.examples(many, list(range(1, 800, 2)), 400)
    law = teacher._logits(example.features[0, example.mask.shape[1] - 2]).softmax(-1)
    table = model.get_input_embeddings().weight
    drawn = torch.cdist(example.embedded[:, -1], table).argmin(1)
    top = law.topk(3)
    for p, token in zip(top.values.tolist(), top.indices.tolist(), strict=True):
        share = float((drawn == token).float().mean())
        assert share == pytest.approx(p, abs=4 * (p * (1 - p) / 400) ** 0.5)


def test_lessons_depend_on_their_number_alone(build):
    first, second = build("eagle"), build("eagle")
    before = first.example(0)
    mine, theirs = first.example(5), second.example(5)
    for name in ("embedded", "features", "mask", "answer"):
        assert torch.equal(getattr(mine, name), getattr(theirs, name))
    for other in (before, first.example(4)):
        assert not torch.equal(mine.embedded[0, -NEW:], other.embedded[0, -NEW:])
    assert {number for number, _ in first._examples} == {4, 5, 6, 7}  # the pool is bounded


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
    assert type(head) is head_class(method)
    assert all(str(head.config[name]) == value for name, value in options["settings"].items())
    teacher = Teacher(*load_vlm(own, torch.float32).values(), NEW)
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


# --- curricula ------------------------------------------------------------------------------------


def test_every_head_has_a_curriculum_and_a_stage():
    assert set(CURRICULA) == set(METHODS) == set(recipes.STAGES["vlm-head"])


@pytest.mark.parametrize(("done", "share"), [(0.0, 0), (0.49, 0), (0.6, 0.2), (0.75, 0.5), (1, 1)])
def test_msd_shows_pictures_ever_more_often(done, share):
    rng = np.random.default_rng(0)
    seen = np.mean([CURRICULA["msd"](done, rng).seen for _ in range(2000)])
    assert seen == pytest.approx(share, abs=0.04 if 0 < share < 1 else 0)


def test_vispec_goes_two_stages():
    rng = np.random.default_rng(0)
    turns = [CURRICULA["vispec"](done, rng) for done in (0.0, 0.49, 0.5, 1.0)]
    assert [turn.how.get("stage", 1) for turn in turns] == [1, 1, 2, 2]
    assert [turn.how["depth"] for turn in turns] == [1, 1, 2, 2]


def test_levels_take_turns():
    rng = np.random.default_rng(0)
    drawn = Counter(CURRICULA["eagle"](0.0, rng).how["depth"] for _ in range(2000))
    assert {depth: round(count / 500) for depth, count in drawn.items()} == {1: 2, 2: 1, 3: 1}


def test_the_trainer_tells_how_far_it_is(build, monkeypatch):
    """MSD's examples are text alone up to the middle of the run."""
    recipe = build("msd", steps=8)
    shown = []
    example = recipe.example
    monkeypatch.setattr(
        recipe, "example", lambda number, seen: shown.append(seen) or example(number, seen)
    )
    monkeypatch.setattr(recipe, "export", lambda model, record: None)
    with torch.random.fork_rng():
        Trainer(recipe, recipe.config).run()
    assert shown[:5] == [False] * 5
    assert any(shown[5:])


# --- data of one's own ----------------------------------------------------------------------------


def write(path: Path, count: int) -> Path:
    (path / "pictures").mkdir()
    rows = []
    for n in range(count):
        Image.new("RGB", (20 + n, 24), (n, 2 * n, 90)).save(path / "pictures" / f"{n}.png")
        rows.append(json.dumps({"image": f"pictures/{n}.png", "question": f"What is {n}?"}))
    file = path / "asked.jsonl"
    file.write_text("\n".join(rows) + "\n\n")
    return file


def test_lines_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir("/")  # paths start at the file's folder
    prompts = FilePrompts(write(tmp_path, 40))
    held_out = prompts.held_out()
    assert held_out.texts == [f"What is {n}?" for n in (0, 10, 20, 30)]
    assert [picture.width for picture in held_out.pictures] == [20, 30, 40, 50]
    rng = np.random.default_rng(0)
    drawn = [text for _ in range(40) for text in prompts.draw(rng, 8).texts]
    assert set(drawn) == {f"What is {n}?" for n in range(40)} - set(held_out.texts)


def test_a_run_on_lines_of_ones_own(folder, tmp_path, quick):
    own = shutil.copytree(folder, tmp_path / "vlm")
    file = write(tmp_path, 4)
    options = ["--method", "specvlm", "--set", "choose=pooling", "--set", "factor=4"]
    options += ["--steps", "1", "--batch-size", "2", "--max-new-tokens", "5"]
    options += ["--pipeline", str(own), "--data", str(file)]
    with torch.random.fork_rng():
        assert main(["train", "vlm-head", *options]) == 0
    head = load_head(own / "heads" / "specvlm")
    assert (head.config.choose, head.config.factor) == ("pooling", 4)
    assert (
        "3 pictures with questions of asked.jsonl"
        in (own / "heads" / "specvlm" / "README.md").read_text()
    )


GOOD = '{"image": "pictures/0.png", "question": "What?"}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 questions"),
        (GOOD, "has 1 questions"),
        (GOOD + "{'image': 1}", "line 2: not JSON"),
        (GOOD + "[1, 2]", "line 2 must be"),
        (GOOD + "\n" + '{"image": "pictures/0.png"}', "line 3 has no question"),
        ('{"image": "pictures/0.png", "question": " "}', "line 1 has no question"),
        ('{"image": ["a.png"], "question": "What?"}', "line 1 has no image"),
        ('{"image": "pictures/9.png", "question": "What?"}', "line 1: no picture .*9.png"),
    ],
)
def test_bad_lines(tmp_path, text, message):
    file = write(tmp_path, 1)
    file.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        FilePrompts(file)
    assert "\n" not in str(caught.value)


def test_files_that_are_none(tmp_path):
    with pytest.raises(InputError, match="can't read"):
        FilePrompts(tmp_path / "none.jsonl")
    file = write(tmp_path, 2)
    (tmp_path / "pictures" / "1.png").write_bytes(b"\x89PNG no picture")
    with pytest.raises(InputError, match=r"can't read .*1\.png"):
        FilePrompts(file).draw(np.random.default_rng(0), 4)


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


# --- several processes ----------------------------------------------------------------------------

PAIR = """
import sys
import time
from pathlib import Path
import torch
from torch import nn
from mmspec.train.parallel import Processes
from mmspec.train.trainer import TrainConfig, Trainer

def draw(rng, step):
    return torch.from_numpy(rng.standard_normal((4, 3))).float()

class Both:
    def __init__(self, seed):
        torch.manual_seed(0)
        self.model, self.draw = nn.Linear(3, 2, bias=False), draw
        self.model.unused = nn.Linear(2, 2)
    def optimizers(self):
        return [torch.optim.SGD(self.model.parameters(), 0.3)]
    def loss(self, batch, rng, step):
        return self.model(batch).square().mean(), {}
    def evaluate(self, model):
        return {"held_out": 0.0}
    def export(self, model, record):
        time.sleep(1)  # the others wait for what it writes
        torch.save(self.model.weight.detach(), Path(sys.argv[1]) / "weight.pt")

processes = Processes.launched("cpu")
config = TrainConfig(Path(sys.argv[1]), 5, 4, seed=processes.seed(7), warmup=1, max_minutes=60.0)
record = Trainer(Both(0), config, None, processes).run()
assert processes.count == record["processes"] == 2
assert processes.first == bool(record["held_out"])
assert (Path(sys.argv[1]) / "weight.pt").exists()
if processes.first:
    Trainer(Both(0), config, None, processes).load()  # what it saved can be gone on from

# Muon's work is shared out, and its weights are those of one process
from mmspec.train import muon
orthogonalize, mine = muon.orthogonalize, []

def counted(g):
    mine.append(g)
    return orthogonalize(g)

muon.orthogonalize = counted
torch.manual_seed(1)
alone = [nn.Parameter(torch.randn(4 + n, 6)) for n in range(5)]
shared = [nn.Parameter(p.detach().clone()) for p in alone]
ours, theirs = muon.Muon(shared, 0.1), muon.Muon(alone, 0.1)
ours.processes = processes
for step in range(3):
    for one, other in zip(alone, shared):
        one.grad = torch.randn_like(one)
        other.grad = one.grad.clone()
    mine.clear()
    ours.step()
    assert len(mine) in (2, 3)
    theirs.step()
assert all(torch.equal(one, other) for one, other in zip(alone, shared))
"""


@pytest.mark.slow
def test_two_processes_take_the_step_of_their_mean_gradient(tmp_path):
    script = tmp_path / "pair.py"
    script.write_text(PAIR)
    # what `accelerate launch` itself calls for several GPUs
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
    ]
    command = [*launch, str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    torch.manual_seed(0)
    weight = nn.Linear(3, 2, bias=False).weight.detach()
    for step in range(5):
        gradient = torch.zeros_like(weight)
        for seed in (7, 7 + 1_000_003):
            x = torch.from_numpy(np.random.default_rng([seed, step]).standard_normal((4, 3)))
            gradient += 2 * (x.float() @ weight.T).T @ x.float() / 8 / 2
        norm = float(gradient.norm())
        rate = 0.3 * min(1.0, (1 - step / 5) / 0.3)
        weight = weight - rate * gradient / max(1.0, norm)
    assert torch.allclose(torch.load(tmp_path / "weight.pt", weights_only=True), weight, atol=1e-5)
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 1
