"""The line of jobs: who runs with whom, in which order, and what becomes of those that can't."""

from __future__ import annotations

import threading
import time

import pytest

from mmspec.errors import InputError
from mmspec.serve.backend import BusyError
from mmspec.serve.batcher import BROKEN, ENDS, Batcher
from mmspec.serve.jobs import Job, News
from mmspec.serve.metrics import RunMetrics
from mmspec.serve.requests import ServeLimits


class Recording:
    """A model that notes its batches, and waits at a gate."""

    def __init__(self):
        self.gate, self.batches, self.runs = threading.Event(), [], 0

    def run(self, jobs):
        self.gate.wait(60)
        self.runs += 1
        if all(job.asked == "mute" for job in jobs):
            raise RuntimeError("before anything is told")
        if any(job.asked == "wrong" for job in jobs):
            for job in jobs:
                job.cancelled = job.cancelled or job.asked == "leaves"
            raise InputError("this can't be")
        if any(job.asked == "broken" for job in jobs):
            if len(jobs) > 1:
                jobs[0].say(News("text", 0, "half"))
            raise RuntimeError("a trace that no client sees")
        self.batches.append([job.asked for job in jobs])
        for job in jobs:
            job.say(News("usage"))


class Line:
    def __init__(self, **limits):
        self.model, self.other, self.heard = Recording(), Recording(), {}
        runners = {"one": self.model, "two": self.other}
        self.metrics = RunMetrics()
        self.batcher = Batcher(runners, ServeLimits(**limits), self.metrics)
        self.other.gate.set()

    def ask(self, name, key="k", rows=1, model="one", seconds=30.0) -> Job:
        heard = self.heard.setdefault(name, [])
        job = Job(model, name, key, rows, [0] * rows, heard.append, time.monotonic() + seconds)
        self.batcher.submit(job)
        return job

    def wait(self, count: int) -> None:
        for _ in range(6000):
            if sum(map(len, self.heard.values())) >= count:
                return
            time.sleep(0.01)
        raise AssertionError(self.heard)


@pytest.fixture
def line():
    made = Line(rows=3, waiting=6)
    yield made
    made.model.gate.set()
    made.batcher.close()


def busy(line) -> None:
    """Let the model wait at its gate with a first job."""
    line.ask("first")
    while line.batcher.waiting:
        time.sleep(0.01)


def together(line, *names: str) -> None:
    """Let these run in one batch, behind a first job."""
    busy(line)
    for name in names:
        line.ask(name)
    line.model.gate.set()


def test_jobs_of_one_key_run_together_and_the_longest_wait_goes_first(line):
    busy(line)
    line.ask("a", "warm")
    line.ask("b", "cold")
    line.ask("c", "warm")
    line.ask("d", "warm", rows=2)  # too many rows for the batch of a and c
    line.ask("e", model="two")
    line.ask("f", "warm")
    line.model.gate.set()
    line.wait(7)
    assert line.model.batches == [["first"], ["a", "c", "f"], ["b"], ["d"]]
    assert line.other.batches == [["e"]]


def test_one_that_can_t_run_does_not_take_others_along(line):
    together(line, "a", "wrong", "b")
    line.wait(4)
    assert line.model.batches == [["first"], ["a"], ["b"]]
    assert tuple(line.heard["wrong"][0].value) == (400, "this can't be")


def test_those_beside_one_that_can_t_run_still_run_together():
    """Fifteen in four batches, not one by one."""
    line = Line(rows=16, waiting=20)
    together(line, *("wrong" if n == 5 else f"{n}" for n in range(16)))
    line.wait(17)
    line.batcher.close()
    assert sorted(map(len, line.model.batches[1:])) == [1, 2, 4, 8]
    assert line.model.runs == 1 + 9  # half of them end at the one that can't
    assert tuple(line.heard["wrong"][0].value) == (400, "this can't be")
    fine = [name for name, heard in line.heard.items() if heard[-1].kind == "usage"]
    assert len(fine) == 16


def test_who_leaves_while_a_batch_fails_does_not_run_again(line):
    together(line, "wrong", "leaves", "b")
    line.wait(4)
    assert line.model.batches == [["first"], ["b"]]
    assert [one.kind for one in line.heard["leaves"]] == ["error"]


def test_no_client_sees_a_trace(line, caplog):
    line.model.gate.set()
    line.ask("broken")
    line.wait(1)
    assert line.heard["broken"][0].value == BROKEN
    assert "a trace that no client sees" in caplog.text


def test_what_breaks_takes_nobody_along_who_has_heard_nothing(line, caplog):
    together(line, "a", "broken", "b")
    line.wait(5)  # a's half, its error, broken's error, b's and the first one's usage
    assert [one.kind for one in line.heard["a"]] == ["text", "error"]
    assert [one.kind for one in line.heard["b"]] == ["usage"]
    assert line.batcher.healthy
    for n in range(3):
        line.ask("broken", key=n)
    line.wait(8)
    assert not line.batcher.healthy


def test_a_batch_that_breaks_and_breaks_again_row_by_row_is_one(line, caplog):
    together(line, *["mute"] * 3)
    line.wait(4)
    assert [one.kind for one in line.heard["mute"]] == ["error"] * 3
    assert line.batcher.healthy


def test_a_full_line_refuses_and_what_is_late_or_gone_never_runs(line):
    busy(line)
    line.ask("late", seconds=0.0)
    gone = line.ask("gone")
    for name in "abcd":
        line.ask(name)
    with pytest.raises(BusyError):
        line.ask("more")
    line.batcher.cancel(gone)
    assert line.batcher.waiting == 5
    line.model.gate.set()
    line.wait(6)
    assert line.model.batches == [["first"], ["a", "b", "c"], ["d"]]
    assert line.heard["late"][0].value.status == 503


def test_the_end_refuses_what_waits_and_interrupts_what_runs():
    line = Line()
    running = line.ask("first")
    while line.batcher.waiting:
        time.sleep(0.01)
    line.ask("a")
    line.batcher.end()
    assert running.idle
    assert running.cut == ENDS
    line.model.gate.set()
    line.batcher.close()
    assert line.heard["a"][0].value == ENDS
    with pytest.raises(BusyError):
        line.ask("b")
    assert not line.batcher.healthy
