"""The choice of a call's drafts, or of none, by a clock that the test sets."""

from __future__ import annotations

import dataclasses
import itertools
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from machines import SHAPES, Machine

from mmspec import SpecConfig
from mmspec.engine.length.ledger import SHARE, Gain
from mmspec.models.target import TokenTarget
from mmspec.pipelines.continuous.pipeline import ContinuousImagePipeline
from mmspec.pipelines.continuous.speculation import ContinuousSpeculation
from mmspec.pipelines.image.pipeline import ImagePipeline
from mmspec.pipelines.load_switch import (
    _LONGEST,
    LoadSwitch,
    any_sample,
    automatic,
    choices_of,
    switched,
)
from mmspec.serve.backend import ChatAsked, PictureAsked

SCD = choices_of(SpecConfig("scd", length="auto"), "image")
AHEAD = {0: 16, 1: 0, 2: 32, 3: 8}  # tokens of their drafts


class Calls:
    """Calls on a machine; what one is told goes by rounds, as within a pipeline."""

    def __init__(self, shape, monkeypatch, stands=(0.8,), choices=SCD, grows=False):
        self.machine = Machine(shape, monkeypatch, stands)
        self.switch, self.choices, self.grows = LoadSwitch(), choices, grows

    def runs(self, rows: int, calls: int, tokens: int = 96) -> list[int]:
        """The number of the choice of every call."""
        chosen = []
        for _ in range(calls):
            with self.switch.call(self.choices, rows, grows=self.grows) as (config, told):
                chosen.append(self.choices.index(config))
                self.machine.plays(self.switch.guard, AHEAD[chosen[-1]], [tokens] * rows)
                told([tokens] * rows)
            assert self.switch.guard is None
        return chosen


def test_drafts_are_left_out_where_they_lose_and_made_again_when_rows_leave(monkeypatch):
    calls = Calls((1.0, 0.06, 0.0, 0.0), monkeypatch, choices=SCD[:2])
    assert calls.runs(32, 1) == [0]  # nothing is known: a try, which the guard ends
    assert calls.runs(32, 10).count(0) <= 2
    assert calls.runs(1, 10) == [0] * 10
    assert calls.runs(32, 10).count(0) <= 2  # what is known of a full batch is known still
    assert calls.runs(2, 10).count(0) >= 9


def test_tries_become_rare_and_never_end(monkeypatch):
    calls = Calls((1.0, 0.06, 0.0, 0.0), monkeypatch, choices=SCD[:2])
    calls.runs(32, 3, 16)
    key = next(iter(calls.switch.ledgers))
    turns = calls.switch._turns[key, 5]
    turns.patience = _LONGEST
    tries = [n for n, choice in enumerate(calls.runs(32, 3 * _LONGEST + 4, 16)) if choice == 0]
    assert {after - before for before, after in itertools.pairwise(tries)} <= {_LONGEST + 1}
    assert len(tries) >= 2


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_about_as_fast_as_the_best_size_and_never_much_slower_than_plain(shape, monkeypatch):
    """Four choices, the best another at each number of rows; tries cost little, from the start."""
    for rows in (1, 4, 32):
        calls = Calls(SHAPES[shape], monkeypatch, grows="windows" in shape)
        calls.runs(rows, 8)
        machine, started = calls.machine, calls.machine.now
        calls.runs(rows, 24)
        spent, plain = machine.now - started, 24 * machine.plain([96] * rows)
        assert machine.now < 32 / 24 * plain / 0.965
        assert spent < plain / 0.97
        fixed = []
        for ahead in AHEAD.values():
            alone = Machine(SHAPES[shape], monkeypatch, (0.8,))
            monkeypatch.setattr("mmspec.engine.length.guard.now", lambda: 0.0)
            for _ in range(6):
                alone.plays(None, ahead, [96] * rows)
            fixed.append(4 * alone.now)
        assert spent < min(fixed) / 0.85


def test_a_size_that_pays_with_more_rows_is_taken_with_fewer(monkeypatch):
    calls = Calls(SHAPES["image: windows, an idle card"], monkeypatch)
    with calls.switch.call(SCD, 16):
        (ledger,) = calls.switch.ledgers.values()
    ledger.calls |= {(0, 4): Gain(1.5, 1.0), (2, 4): Gain(2.0, 1.0), (3, 4): Gain(1.2, 1.0)}
    for rows, wanted in ((16, 2), (4, 2), (1, 2), (64, 0)):  # of more rows nothing is known
        with calls.switch.call(SCD, rows) as (config, _):
            assert SCD.index(config) == wanted
    ledger.calls = {(arm, 4): Gain(0.5, 1.0) for arm in (0, 2, 3)}
    with calls.switch.call(SCD, 64) as (config, _):
        assert config == SpecConfig("plain")


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


@pytest.fixture
def clock(monkeypatch):
    """A clock that a call of the target moves: by 1, and by `price` for every drafted token."""
    time = SimpleNamespace(now=0.0, price=0.0, drafted=[])
    score = TokenTarget.score

    def scored(target, context, draft):
        time.now += 1 + time.price * draft.nodes
        time.drafted.append(draft.nodes)
        return score(target, context, draft)

    def started(target, rows):
        time.now += 1
        return start(target, rows)

    start = TokenTarget.start
    monkeypatch.setattr(TokenTarget, "score", scored)
    monkeypatch.setattr(TokenTarget, "start", started)
    monkeypatch.setattr("mmspec.engine.length.guard.now", lambda: time.now)
    return time


def quiet(folder) -> ImagePipeline:
    pipe = ImagePipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_a_seed_gives_the_usual_drafts_and_no_round_is_left_plain(tiny_folder, clock):
    pipe = quiet(tiny_folder)

    def seeded():
        return pipe("red", generator=torch.Generator().manual_seed(3), output_type="tokens")

    pipe.enable_speculation(SpecConfig("scd"))
    wanted, drafted = seeded(), list(clock.drafted)
    pipe.enable_speculation("scd")
    asked, clock.price = pipe.speculation, 1.0
    for _ in range(3):
        clock.drafted.clear()
        out = seeded()
        assert torch.equal(out.images, wanted.images)
        assert clock.drafted == drafted
    torch.manual_seed(5)  # as users seed who give no generator
    assert pipe("red", output_type="tokens").stats.method == "scd"
    assert not pipe.switch.ledgers
    assert pipe.speculation == asked


def drawn(pipe, prompt, seed: int):
    """With a seed, so that always the same drafts stand; the switch chooses where `any_sample`."""
    return pipe(prompt, generator=torch.Generator().manual_seed(seed), output_type="tokens")


def test_rounds_that_do_not_pay_are_plain_and_then_calls_are(tiny_folder, clock):
    pipe = quiet(tiny_folder)
    pipe.enable_speculation("scd")
    clock.price = 1.5  # a token costs more than a round: no draft pays
    with any_sample():
        first = drawn(pipe, ["red"] * 2, 0).stats
        assert first.method == "scd"
        assert 0 < len(first.rounds) - first.alone <= 3  # short drafts, then none
        later = [drawn(pipe, ["red"] * 2, n).stats for n in range(1, 7)]
    assert later[-1].method == "plain"
    assert sum(stats.method == "scd" for stats in later) <= 2  # the other sizes


def test_drafts_that_pay_are_made_in_all_rounds_but_those_that_are_timed(tiny_folder, clock):
    pipe = quiet(tiny_folder)
    pipe.enable_speculation("scd")
    with any_sample():
        first, *others = [drawn(pipe, "red", n).stats for n in range(4)]
    assert first.alone >= 3  # of which the first tells nothing
    assert all(stats.method == "scd" for stats in others)
    assert all(stats.alone <= 1 for stats in others)  # at the last token there is no room


def test_a_tree_has_its_own_numbers_of_nodes(tiny_folder, clock):
    """Of half as many nodes, or twice; depths are cut while a trial begins."""
    pipe = quiet(tiny_folder)
    pipe.enable_speculation(SpecConfig("token-recycling", length="auto"))
    sizes = [
        config.resolve("image").draft_size().most_drafted
        for config in choices_of(pipe.speculation, "image")
    ]
    usual, none, twice, half = sizes
    assert none == 0
    assert usual / 2 == pytest.approx(half, rel=0.25)
    assert usual * 2 == pytest.approx(twice, rel=0.25)
    with any_sample():
        found = [drawn(pipe, "red", n).stats for n in range(4)]
    assert all(sum(stats.emitted) == sum(found[0].emitted) for stats in found)
    assert len(set(clock.drafted)) > 3


def test_an_error_says_nothing_and_the_method_stays(tiny_folder, clock):
    pipe = quiet(tiny_folder)
    pipe.enable_speculation("scd")
    asked = pipe.speculation

    def fails(*_):
        raise ZeroDivisionError

    with any_sample(), pytest.raises(ZeroDivisionError):
        pipe("red", callback_on_step_end=fails)
    assert pipe.speculation == asked
    assert pipe.switch.guard is None
    assert not any(ledger.calls for ledger in pipe.switch.ledgers.values())


def test_a_call_that_breaks_off_pays_for_what_its_drafter_has_read(monkeypatch):
    calls = Calls(SHAPES["vlm: a head"], monkeypatch, choices=SCD[:2])
    calls.runs(1, 2)
    (ledger,) = calls.switch.ledgers.values()
    before = ledger.balances[0]

    def breaks_off():
        with calls.switch.call(SCD[:2], 1):
            with calls.switch.guard.reading(1, lambda: None):
                calls.machine.now += 2.0
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        breaks_off()
    assert ledger.balances[0] == pytest.approx(before - 2.0 * (1 - SHARE))


@pytest.mark.parametrize("pays", [True, False])
def test_predictions_of_denoising_steps_are_drafted_where_that_pays(pays, monkeypatch):
    pipe = ContinuousImagePipeline.from_pretrained()
    pipe.set_progress_bar_config(disable=True)
    pipe.enable_speculation()
    assert pipe.speculation == SpecConfig("reflection", length="auto")
    time, took = [0.0], {"_plainly": 2.0, "_drafted": 1.0 if pays else 3.0}
    ways = []

    def now() -> float:
        time[0] += 1e-6
        return time[0]

    monkeypatch.setattr("mmspec.engine.length.guard.now", now)
    for name in took:
        inner = getattr(ContinuousSpeculation, name)

        def draws(self, prediction, name=name, inner=inner):
            # in proportion to its tokens, as if a processor were busy
            time[0] += took[name] * len(prediction.condition)
            ways.append(name)
            return inner(self, prediction)

        monkeypatch.setattr(ContinuousSpeculation, name, draws)

    def call():
        ways.clear()
        out = pipe("a red circle", num_iterations=12, diffusion_steps=4, output_type="latent")
        return out.stats, ways.count("_drafted"), len(ways)

    with any_sample():
        each = [call() for _ in range(5)]
    assert len({sum(stats.emitted) for stats, _, _ in each}) == 1
    drafted = [count for _, count, _ in each]
    if pays:
        assert drafted[-1] >= 10
    else:
        assert 0 < drafted[0] <= 3
        assert each[-1][0].method == "plain"


class Spied:
    """A pipeline whose calls do nothing; remembers what its switch is asked and told."""

    device, dtype = "cpu", torch.float32

    def __init__(self, method: str, modality: str) -> None:
        self.modality, self.speculation = modality, SpecConfig(method, length="auto")
        self.interrupt, self.asked, self.told, self.ran = False, [], [], []
        self.switch = self

    @contextmanager
    def call(self, choices, *how):
        self.asked.append(how)
        yield choices[1], lambda *told: self.told.append(told)

    @switched
    def __call__(
        self,
        prompt=None,
        num_images_per_prompt=1,
        batch_size=None,
        generator=None,
        memory=None,
        height=None,
        guidance_scale=None,
        class_labels=None,
        num_inference_steps=None,
        timesteps=None,
    ):
        self.ran.append(self.speculation.method)
        return SimpleNamespace(stats=SimpleNamespace(emitted=[5, 3]))


def test_what_a_switch_is_asked_and_told():
    place = "cpu", "torch.float32", *[None] * 7, False, False
    picture, answer, vectors = (
        Spied(*way) for way in (("scd", "image"), ("draft", "vlm"), ("reflection", "continuous"))
    )
    with any_sample():
        picture(["red", "blue"], num_images_per_prompt=3)
        answer([{"role": "user", "content": "red"}])  # one conversation
        answer(["red", "blue", "green"], batch_size=2)
        vectors("red")
    assert picture.asked == [(6, place, True, None)]
    assert picture.told == [([5, 3], None)]
    assert answer.asked == [(1, place, False, None), (2, place, False, None)]
    assert answer.told == [([5, 3], None), ([5, 3], 2)]
    assert vectors.asked == [(1, place, False, 1)]
    assert vectors.told == [((), None)]
    with any_sample():  # other networks, or other rows in them, are another place
        picture("red", height=64)
        picture("red", guidance_scale=1)
        picture("red", guidance_scale=3.0)
    places = [how[1] for how in picture.asked]
    assert len({*places}) == 3
    assert places[3] == place
    del picture.told[1:], picture.ran[1:]
    picture.interrupt = True
    with any_sample():
        picture("red")
        assert len(picture.told) == 1  # how long it would have taken nobody knows
        answer("red", memory=object())  # of what another call has left
    assert len(answer.asked) == 2
    assert (picture.ran, answer.ran) == (["plain"] * 2, ["plain", "plain", "draft"])


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        (5, 1),
        (torch.tensor(5), 1),
        (np.array(5), 1),
        (torch.arange(3), 3),
        (np.arange(3), 3),
        (range(3), 3),
        ((1, 2), 2),
    ],
    ids=str,
)
def test_classes_are_counted_in_every_form(given, rows):
    pipe = Spied("scd", "image")
    with any_sample():
        pipe(class_labels=given)
        pipe(class_labels=given, num_images_per_prompt=2)
    assert [how[0] for how in pipe.asked] == [rows, 2 * rows]


def test_calls_of_other_steps_are_another_place():
    pipe = Spied("scd", "image")
    with any_sample():
        for steps in ({}, {"num_inference_steps": 4}, {"num_inference_steps": 50}):
            pipe("red", **steps)
        for timesteps in ([1000, 500], (1000, 500), [1000]):
            pipe("red", timesteps=timesteps)
    places = [how[1] for how in pipe.asked]
    assert places[3] == places[4]
    assert len({*places}) == 5


def test_a_seeded_draw_is_never_switched():
    chat = ChatAsked([], 1.0, 1.0, 0, None, (), True)
    assert not chat.free
    assert dataclasses.replace(chat, seeded=False).free
    assert dataclasses.replace(chat, temperature=0.0).free
    assert not PictureAsked("a circle", None, None, True).free
    assert PictureAsked("a circle", None, None, False).free
