"""The choice of a call's drafts, or of none, by a clock that the test sets."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from mmspec import SpecConfig
from mmspec.pipelines.continuous.pipeline import ContinuousImagePipeline
from mmspec.pipelines.image.pipeline import ImagePipeline
from mmspec.pipelines.load_switch import (
    _LONGEST,
    _PATIENCE,
    _TRIES,
    LoadSwitch,
    any_sample,
    automatic,
    choices_of,
)
from mmspec.serve.backend import ChatAsked, PictureAsked

TOKENS = 48  # a row
SCD = choices_of(SpecConfig("scd", length="auto"), "image")


class Machine:
    """Calls on a processor that takes `cost(choice, rows)` seconds a row's token."""

    def __init__(self, cost, monkeypatch, choices=SCD[:2]):
        self.cost, self.time, self.choices = cost, 0.0, choices
        self.switch = LoadSwitch()
        monkeypatch.setattr("mmspec.pipelines.load_switch.now", lambda: self.time)

    def runs(self, rows: int, calls: int) -> list[int]:
        """The number of the choice of every call."""
        chosen = []
        for _ in range(calls):
            with self.switch.call(self.choices, rows) as (config, told):
                chosen.append(self.choices.index(config))
                self.time += TOKENS * rows * self.cost(chosen[-1], rows)
                told(TOKENS * rows)
        return chosen


def busy(choice: int, rows: int) -> float:
    """Twice as fast alone, 0.8 times as fast with 16 rows: drafts cost arithmetic of every row."""
    return (1.0 if choice else 0.4 + 0.05 * rows) / rows


def test_drafts_are_left_out_where_they_lose_and_made_again_when_rows_leave(monkeypatch):
    machine = Machine(busy, monkeypatch)
    first = machine.runs(16, 40)
    assert first[: 2 * _TRIES] == [0] * _TRIES + [1] * _TRIES
    assert first[2 * _TRIES :].count(0) == 2  # after 8 calls, and after 16 more
    assert not any(machine.runs(4, 2 * _TRIES + _PATIENCE - 1)[2 * _TRIES :])
    assert machine.runs(16, 40).count(0) <= 2  # and what is known of a full batch is known still
    assert machine.runs(3, 40).count(0) >= 38


def test_tries_become_rare_and_never_end(monkeypatch):
    machine = Machine(busy, monkeypatch)
    machine.runs(16, 20 * _LONGEST)
    tries = [n for n, choice in enumerate(machine.runs(16, 4 * _LONGEST)) if choice == 0]
    assert {after - before for before, after in itertools.pairwise(tries)} == {_LONGEST + 1}


@pytest.mark.parametrize("wins", [0, 1])
def test_a_machine_that_changes_is_followed(wins, monkeypatch):
    fast = {wins: 0.5, 1 - wins: 1.0}
    machine = Machine(lambda choice, rows: fast[choice], monkeypatch)
    assert machine.runs(8, _PATIENCE)[-1] == wins
    fast[wins], fast[1 - wins] = 1.0, 0.25
    machine.runs(8, 8 * _PATIENCE)
    assert machine.runs(8, 60).count(wins) < 10


@pytest.mark.parametrize("rows", [1, 4, 32])
def test_it_is_about_as_fast_as_the_best_choice_and_never_much_slower_than_plain(rows, monkeypatch):
    """Four choices, the best another at each size; what the tries cost is soon made up."""

    def cost(choice: int, rows: int) -> float:
        ahead = {0: 16, 1: 0, 2: 32, 3: 8}[choice]  # of which 0.8 stand for each, the first best
        return (1 + ahead * rows / 100) / (1 - 0.8 ** (1 + ahead)) * 0.2 / rows

    machine = Machine(cost, monkeypatch, SCD)
    machine.runs(rows, 40)
    started = machine.time
    machine.runs(rows, 1000)
    spent = machine.time - started
    each = [1000 * TOKENS * rows * cost(choice, rows) for choice in range(4)]
    assert spent < min(each) * 1.03
    assert spent < each[1] / 0.97


def test_the_first_call_of_a_kind_which_is_slow_tells_nothing(monkeypatch):
    seen = set()

    def cost(choice: int, rows: int) -> float:
        slow = choice not in seen
        seen.add(choice)
        return 100.0 if slow and choice == 0 else 1.0 + choice

    assert Machine(cost, monkeypatch).runs(1, 2 * _TRIES + 3)[2 * _TRIES :] == [0] * 3


def test_choices_are_sizes_of_the_same_law_and_none():
    assert (
        SpecConfig("scd"),
        SpecConfig("plain"),
        SpecConfig("scd", window=32),
        SpecConfig("scd", window=8),
    ) == SCD
    assert choices_of(SpecConfig("scd"), "image") == (SpecConfig("scd"),)
    own = SpecConfig("scd", length="auto", window=20)
    assert choices_of(own, "image") == (SpecConfig("scd", window=20), SpecConfig("plain"))
    head = choices_of(SpecConfig("dflash", length="auto"), "vlm")  # never beyond its block
    usual = head[0].resolve("vlm").options["num_draft_tokens"]
    assert [c.options.get("num_draft_tokens", usual) for c in head[2:]] == [usual // 2]
    rounded = SpecConfig("draft", length="auto", target_weights="int8", num_draft_tokens=3)
    assert choices_of(rounded, "vlm")[1] == SpecConfig("plain", target_weights="int8")


@pytest.mark.parametrize(
    ("method", "modality", "auto"),
    [
        ("scd", "image", True),
        ("tree", "image", True),
        ("merged", "image", True),
        ("draft", "vlm", True),
        ("eagle", "vlm", True),
        ("reflection", "continuous", True),
        ("plain", "image", False),
        ("gsd", "image", False),  # lossy
        ("sdvg", "video", False),
        ("drafter-only", "vlm", False),
    ],
)
def test_exact_methods_that_are_named_alone_get_it(method, modality, auto):
    made = automatic(SpecConfig(method), modality)
    assert made == (SpecConfig(method, length="auto") if auto else SpecConfig(method))
    choices = choices_of(made, modality)
    assert (SpecConfig("plain") in choices[1:]) is auto
    if auto:
        assert {config.resolve(modality).contract for config in choices} == {"exact"}


def counted(monkeypatch, pipe, calls):
    """Method and size of the calls' configurations, where every call takes a second."""
    seconds = itertools.count()
    monkeypatch.setattr("mmspec.pipelines.load_switch.now", lambda: float(next(seconds)))
    heard = []
    monkeypatch.setattr(pipe, "on_engine", lambda engine: heard.append(pipe.speculation))
    for call in calls:
        heard.clear()
        out = call()
        yield heard[0] if heard else None, out  # plain denoising has no engine


def test_a_picture_without_a_seed_is_drawn_by_each_choice_and_one_with_a_seed_by_the_first(
    tiny_folder, monkeypatch
):
    pipe = ImagePipeline.from_pretrained(tiny_folder)
    pipe.set_progress_bar_config(disable=True)

    def seeded():
        return pipe("red", generator=torch.Generator().manual_seed(3), output_type="tokens").images

    pipe.enable_speculation(SpecConfig("scd"))
    wanted = seeded()
    pipe.enable_speculation("scd")
    asked = pipe.speculation
    for config, tokens in counted(monkeypatch, pipe, [seeded] * 5):
        assert config == SpecConfig("scd")
        assert torch.equal(tokens, wanted)
    with any_sample():  # a generator is given, and nobody keeps its seed
        each = [config for config, _ in counted(monkeypatch, pipe, [seeded] * 9)]
    assert each == [*(c for c in choices_of(asked, "image") for _ in range(_TRIES)), each[0]]
    torch.manual_seed(5)  # as users seed who give no generator
    free = [lambda: pipe("red")] * 3
    assert {config for config, _ in counted(monkeypatch, pipe, free)} == {SpecConfig("scd")}
    assert pipe.speculation == asked


def test_an_error_says_nothing_and_the_method_stays(tiny_folder, monkeypatch):
    pipe = ImagePipeline.from_pretrained(tiny_folder)
    pipe.set_progress_bar_config(disable=True)
    pipe.enable_speculation("scd")
    asked = pipe.speculation

    def fails(*_):
        raise ZeroDivisionError

    with any_sample(), pytest.raises(ZeroDivisionError):
        pipe("red", callback_on_step_end=fails)
    assert pipe.speculation == asked
    assert all(pace.calls == 0 for size in pipe.switch.sizes.values() for pace in size.paces)


def test_denoising_steps_are_counted_alike_whoever_drafts_them(monkeypatch):
    """Rates of plain and drafted calls are compared, so both must count the same output."""
    pipe = ContinuousImagePipeline.from_pretrained()
    pipe.set_progress_bar_config(disable=True)
    pipe.enable_speculation()
    assert pipe.speculation == SpecConfig("reflection", length="auto")
    how = dict(num_iterations=2, diffusion_steps=6, output_type="latent")
    with any_sample():
        calls = [lambda: pipe("a red circle", **how)] * (2 * _TRIES)
        each = list(counted(monkeypatch, pipe, calls))
    assert [out.stats.method for _, out in each] == ["reflection"] * _TRIES + ["plain"] * _TRIES
    assert len({sum(out.stats.emitted) for _, out in each}) == 1


def test_a_seeded_draw_is_never_switched():
    chat = ChatAsked([], 1.0, 1.0, 0, None, (), True)
    assert not chat.free
    assert dataclasses.replace(chat, seeded=False).free
    assert dataclasses.replace(chat, temperature=0.0).free
    assert not PictureAsked("a circle", None, None, True).free
    assert PictureAsked("a circle", None, None, False).free
