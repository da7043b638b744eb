"""The table of `--compare`: seconds, speed-ups and what is said of them agree."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from mmspec.engine.stats import SpecStats
from mmspec.eval.measure.timing import Sample, paired_runs
from mmspec.eval.showcase import Showcase, print_table
from mmspec.methods import SpecConfig
from mmspec.pipelines.notices import Notices


def sample(seconds: float, tokens: int, method: str = "plain") -> Sample:
    stats = SpecStats(method, calls=[tokens], emitted=[tokens], target_tokens=[tokens])
    stats.seconds = {"target": seconds}
    return Sample("why?", 0, seconds, stats, None)


def test_answers_of_unlike_length_are_compared_a_token():
    """A drawn answer half as long takes half the time: that is no speed-up."""
    samples = {"plain": [sample(10.0, 100), sample(4.0, 40)], "sjd": [sample(5.0, 50, "sjd")] * 2}
    row = Showcase(SimpleNamespace(device=torch.device("cpu")), {}, "why?", 2, 0, {}).record(
        samples
    )["methods"]["sjd"]
    assert row["speedup_median"] == pytest.approx(1)


def test_what_seconds_and_speedups_are_is_said(capsys):
    """The quotient of the medians here is 10, the median of the quotients is 1.1."""
    pairs = [(1.1, 1.0), (100.0, 10.0), (110.0, 100.0)]
    samples = {
        "plain": [sample(plain, 10) for plain, _ in pairs],
        "sjd": [sample(own, 10, "sjd") for _, own in pairs],
    }
    print_table(
        Showcase(SimpleNamespace(device=torch.device("cpu")), {}, "why?", 2, 0, {}).record(samples)[
            "methods"
        ]
    )
    head, plain, sjd, told = capsys.readouterr().out.splitlines()
    at = head.index("seconds"), head.index("speed-up")
    assert [line[at[0] :].split()[0] for line in (plain, sjd)] == ["100.000", "10.000"]
    assert sjd[at[1] :].startswith("1.10×")
    assert told == (
        "seconds: median of the calls; speed-up: plain's seconds over the row's, call by call and "
        "for outputs of one length, the median"
    )


def test_a_table_without_speedups_explains_none(capsys):
    show = Showcase(SimpleNamespace(device=torch.device("cpu")), {}, "why?", 1, 0, {})
    print_table(show.record({"sjd": [sample(1.0, 10)]})["methods"])
    assert len(capsys.readouterr().out.splitlines()) == 2


class Pipe:
    """A pipeline that estimates plain decoding at a tenth of what it takes."""

    speculation = SpecConfig("plain")
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.notices = Notices()

    def enable_speculation(self, config: SpecConfig) -> None:
        self.speculation = config

    def __call__(self, prompt: str, generator) -> Sample:
        made = sample(1.0, 10, self.speculation.method)
        self.notices.check(made.stats, plain=0.1)
        return made


@pytest.mark.parametrize(("methods", "told"), [(["plain", "sjd"], 0), (["sjd"], 1)])
def test_an_estimate_never_contradicts_the_table(caplog, monkeypatch, methods, told):
    """Nor does the first call of a process, which is slow, count for one."""
    pipe, configs = Pipe(), {name: SpecConfig(name) for name in methods}
    with caplog.at_level(logging.WARNING):
        paired_runs(pipe, configs, ["a"] * 2, 0, {})
    assert len(caplog.records) == told
    with caplog.at_level(logging.WARNING):
        paired_runs(Pipe(), configs, [], 0, {}, warmup=0)
    assert len(caplog.records) == told


def test_a_record_names_the_device_that_computed(monkeypatch):
    """A machine may have another one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a card")
    pipe = SimpleNamespace(device=torch.device("cpu"))
    record = Showcase(pipe, {}, "p", 1, 0, {}).record({})
    assert record["environment"]["device"] == "cpu"
