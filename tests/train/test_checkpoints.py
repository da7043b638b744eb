"""Checkpoints of a training: its settings, damaged files, a full disk, and one run at a time."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import fields, replace

import pytest
import torch
from torch import nn

from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.files import locked
from mmspec.train import recipes
from mmspec.train.parallel import Processes
from mmspec.train.routing import RANKS, BestRanked
from mmspec.train.stopping import heard
from mmspec.train.trainer import FREE, TrainConfig, Trainer


def draw_numbers(rng, step):
    return torch.from_numpy(rng.standard_normal((4, 3))).float()


class Toy:
    """One layer, as the trainer wants it."""

    draw = staticmethod(draw_numbers)

    def __init__(self, width: int = 2) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = nn.Linear(3, width)

    def optimizers(self):
        return [torch.optim.AdamW(self.model.parameters(), 0.01)]

    def loss(self, batch, rng, step):
        return self.model(batch).square().mean(), {}

    def evaluate(self, model):
        return {}

    def export(self, model, record):
        pass


class Shipped(Toy):
    """The same with what recipes of the table take."""

    def __init__(self, config, pipeline, init=None, rate=0.01, settings=None) -> None:
        super().__init__()


@pytest.fixture
def config(tmp_path) -> TrainConfig:
    return TrainConfig(tmp_path / "toy", 2, 4, warmup=1)


@pytest.fixture
def stage(monkeypatch):
    """A recipe of one quick stage, `toy`."""
    options = {"init": "init", "rate": "rate", "settings": "settings"}
    made = recipes.Stage(f"{__name__}:Shipped", {"steps": 2, "batch_size": 4}, options)
    monkeypatch.setattr(recipes, "STAGES", {"toy": {"toy": made}})
    monkeypatch.setattr(recipes, "resolve", lambda reference: Shipped)


def one_line(call) -> str:
    with pytest.raises(InputError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


OTHERS = {
    "batch_size": 8,
    "seed": 1,
    "precision": "bfloat16",
    "warmup": 2,
    "decay": 0.5,
    "ema": 0.9,
    "clip": 2.0,
    "repeat": 1,
    "keep": 0.5,
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_resumed_run_has_the_settings_that_it_began_with(config, name):
    Trainer(Toy(), config).run()
    other = replace(config, **{name: OTHERS[name]})
    line = one_line(Trainer(Toy(), other).run)
    own = "none" if getattr(config, name) is None else getattr(config, name)
    assert f"checkpoint.pt has {name} {own}, and this run has {OTHERS[name]}: resume it" in line


def test_what_a_resumed_run_may_have_otherwise_is_listed(config):
    """Every field is compared or listed; longer, elsewhere and told more often is the same run."""
    assert OTHERS.keys() | FREE == {field.name for field in fields(TrainConfig)}
    assert not OTHERS.keys() & FREE
    Trainer(Toy(), config).run()
    longer = replace(
        config, steps=3, max_minutes=5.0, save_minutes=1.0, evaluate_every=1, workers=0
    )
    assert Trainer(Toy(), longer).run()["step"] == 3


def test_the_number_of_processes_and_a_recipes_arguments_are_settings(config):
    Trainer(Toy(), config, arguments={"rate": 0.1}).run()
    assert "has rate 0.1, and this run has 0.2" in one_line(
        Trainer(Toy(), config, arguments={"rate": 0.2}).load
    )
    two = Processes(0, 2)
    trainer = Trainer(Toy(), config, processes=two, arguments={"rate": 0.1})
    assert "has processes 1, and this run has 2" in one_line(trainer.load)


def test_every_process_has_the_runs_seed(config):
    """Their data differ, and the checkpoint of the first is all of theirs."""
    first = Trainer(Toy(), config, processes=Processes(0, 2))
    first.save()
    second = Processes(1, 2)
    Trainer(Toy(), replace(config, seed=second.seed(config.seed)), processes=second).load()


def test_a_checkpoint_of_an_earlier_version_is_read(config):
    trainer = Trainer(Toy(), config)
    trainer.run()
    state = torch.load(trainer.checkpoint, weights_only=True)
    del state["settings"]
    torch.save(state, trainer.checkpoint)
    again = Trainer(Toy(), replace(config, seed=9))
    again.load()
    assert again.step == 2
    assert torch.equal(again.model.weight, trainer.model.weight)


def test_a_setting_that_an_earlier_version_did_not_have_was_as_it_is_by_default(config):
    trainer = Trainer(Toy(), config)
    trainer.run()
    state = torch.load(trainer.checkpoint, weights_only=True)
    del state["settings"]["keep"]
    torch.save(state, trainer.checkpoint)
    again = Trainer(Toy(), config)
    again.load()
    assert again.step == 2
    assert "has keep 0.0, and this run has 0.5" in one_line(
        Trainer(Toy(), replace(config, keep=0.5)).load
    )


class Dropping(Toy):
    """A network that draws what it leaves out."""

    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.fail_at = fail_at
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    def loss(self, batch, rng, step):
        if step == self.fail_at:
            raise KeyboardInterrupt
        return super().loss(batch, rng, step)


def test_what_a_resumed_run_leaves_out_is_what_an_unbroken_one_does(config, tmp_path):
    def run(name: str, fail_at: int | None = None):
        with torch.random.fork_rng():
            torch.manual_seed(0)  # as recipes do at every start
            how = replace(config, out=tmp_path / name, steps=6, save_minutes=0.0)
            trainer = Trainer(Dropping(fail_at), how)
            trainer.run()
        return trainer.model.state_dict()

    whole = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("broken", fail_at=3)
    again = run("broken")
    assert all(torch.equal(whole[name], again[name]) for name in whole)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 and no more", None])
def test_a_damaged_checkpoint_is_one_line(config, content):
    checkpoint = config.out / "checkpoint.pt"
    config.out.mkdir()
    checkpoint.mkdir() if content is None else checkpoint.write_bytes(content)
    line = one_line(Trainer(Toy(), config).run)
    assert f"can't read checkpoint {checkpoint}: " in line
    assert line.endswith("delete it to train from the start")


def test_a_checkpoint_that_was_cut_off(config):
    Trainer(Toy(), config).run()
    checkpoint = config.out / "checkpoint.pt"
    whole = checkpoint.read_bytes()
    for size in (1, len(whole) // 2, len(whole) - 1):
        checkpoint.write_bytes(whole[:size])
        assert "delete it to train from the start" in one_line(Trainer(Toy(), config).load)


@pytest.mark.parametrize("state", [3, {}, {"model": {}}, {"model": 3, "average": [], "step": "x"}])
def test_a_checkpoint_of_another_content(config, state):
    config.out.mkdir()
    torch.save(state, config.out / "checkpoint.pt")
    assert "does not fit what is trained here" in one_line(Trainer(Toy(), config).load)


def test_a_checkpoint_of_another_model(config):
    Trainer(Toy(width=4), config).run()
    assert "does not fit what is trained here" in one_line(Trainer(Toy(), config).load)


def test_a_full_disk_keeps_the_last_checkpoint(config, full_disk):
    trainer = Trainer(Toy(width=500), config)
    trainer.run()
    before = trainer.checkpoint.read_bytes()
    with full_disk(3000):
        line = one_line(trainer.save)
    assert line == f"can't write {trainer.checkpoint}: File too large"
    assert trainer.checkpoint.read_bytes() == before
    assert sorted(file.name for file in config.out.iterdir()) == ["checkpoint.pt", "log.jsonl"]


def test_the_command_compares_too(stage, tmp_path, capsys):
    """A default of the recipe is the same setting as its value given; another one is refused."""
    folder = ["train", "toy", "--pipeline", str(tmp_path / "run")]
    assert main([*folder, "--seed", "3"]) == 0
    assert main([*folder, "--seed", "3", "--rate", "0.01", "--steps", "3"]) == 0
    capsys.readouterr()
    for words, told in (
        ([], "has seed 3, and this run has 0: resume it"),
        (["--seed", "3", "--rate", "0.5"], "has rate 0.01, and this run has 0.5"),
        (["--seed", "3", "--batch-size", "8"], "has batch_size 4, and this run has 8"),
        (["--seed", "3", "--set", "depth=2"], "has settings none, and this run has {'depth': '2'}"),
    ):
        assert main([*folder, *words]) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("mmspec: error: ")
        assert told in error


def test_the_command_prints_its_records_alone(stage, tmp_path, capsys):
    """Figures of the way there go to the standard error, with the time that is left."""
    assert main(["train", "toy", "--pipeline", str(tmp_path / "run"), "--steps", "3"]) == 0
    told = capsys.readouterr()
    assert len(json.loads(told.out)) == 1
    lines = [json.loads(line) for line in told.err.splitlines() if line.startswith("{")]
    assert lines[-1]["step"] == 3
    assert lines[-1]["seconds_left"] == 0


def test_a_folder_that_another_run_writes_is_refused(stage, tmp_path, capsys):
    with locked(tmp_path / "run"):
        assert main(["train", "toy", "--pipeline", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith("mmspec: error: another run writes to")
    assert not (tmp_path / "run").exists()


class Ranked(BestRanked, Toy):
    """A recipe that ships the weights of its best evaluation."""

    def __init__(self, *scores: float) -> None:
        super().__init__()
        self.scores = [*scores]

    def evaluate(self, model):
        return self.ranked({RANKS: self.scores.pop(0)}, model)

    def export(self, model, record):
        self.take_best(model, record)
        self.shipped = {name: x.clone() for name, x in model.state_dict().items()}


@pytest.mark.parametrize("steps", [2, 3])
def test_the_best_weights_outlive_the_run(config, steps):
    """Asked for again, and gone on with: later weights rank lower."""
    first = Ranked(0.9, 0.1)
    Trainer(first, replace(config, steps=2, evaluate_every=1)).run()
    again = Ranked(0.2)
    record = Trainer(again, replace(config, steps=steps, evaluate_every=1)).run()
    assert record["held_out"][RANKS] == 0.9
    assert all(torch.equal(first.shipped[name], again.shipped[name]) for name in first.shipped)


@pytest.mark.parametrize(
    ("sent", "ended"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_ends_a_run_between_two_steps_with_a_checkpoint(config, sent, ended):
    class Interrupted(Toy):
        def loss(self, batch, rng, step):
            if step == 1:
                os.kill(os.getpid(), sent)
            return super().loss(batch, rng, step)

    before = signal.signal(sent, signal.default_int_handler)
    try:
        with pytest.raises(ended) as caught:
            Trainer(Interrupted(), replace(config, steps=5)).run()
        assert signal.getsignal(sent) is signal.default_int_handler
    finally:
        signal.signal(sent, before)
    assert sent == signal.SIGINT or caught.value.code == 143
    kept = torch.load(config.out / "checkpoint.pt", weights_only=True)
    assert kept["step"] == 2
    assert Trainer(Toy(), replace(config, steps=5)).run()["step"] == 5


def test_signals_of_one_of_several_processes_and_ignored_ones_stay_as_they_are():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        usual = signal.getsignal(signal.SIGTERM)
        with heard(False):
            assert signal.getsignal(signal.SIGTERM) == usual
        with heard() as stop:
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != usual
            stop.end()  # nothing has come
        assert signal.getsignal(signal.SIGTERM) == usual
    finally:
        signal.signal(signal.SIGINT, before)
