"""What works beside the caller: in a process, on a thread, or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

from mmspec.draft.beside import Here, Process, Thread, beside
from mmspec.errors import InputError

CPU = torch.device("cpu")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
PLACES = ("here", "thread", pytest.param("process", marks=needs_fork))


@pytest.fixture
def threads():
    """Three threads, of which processes may take some."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


class Worker:
    def twice(self, x):
        return x * 2

    def fail(self):
        raise OverflowError("too much")


@pytest.mark.parametrize("place", PLACES)
def test_methods_are_run_and_errors_are_told(place, threads):
    made = beside(Worker(), CPU, place)
    assert isinstance(made, {"here": Here, "thread": Thread, "process": Process}[place])
    assert made.begin("twice", torch.tensor([3]))().tolist() == [6]
    with pytest.raises((OverflowError, RuntimeError), match="too much"):
        made.begin("fail")()
    assert made.begin("twice", 4)() == 8
    made.close()


@needs_fork
def test_a_process_that_a_thread_forks(threads):
    """As those of a server's do."""
    found = []

    def work():
        made = Process(Worker())
        found.append(made.begin("twice", 21)())
        made.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert found == [42]


@needs_fork
def test_threads_are_given_back_after_the_last_process(threads):
    places = [Process(object()) for _ in range(2)]
    assert torch.get_num_threads() == 1
    places[0].close()
    assert torch.get_num_threads() == 2
    places[1].close()
    assert torch.get_num_threads() == 3


@needs_fork
def test_a_process_ends_with_its_caller():
    """One that is killed closes nothing; and a handler of the caller's for its end is not run."""
    code = """
import os, signal, sys
from mmspec.draft.beside import Process
signal.signal(signal.SIGTERM, lambda *_: None)
closed, left = Process(object()), Process(object())
closed.close()
os.kill(os.getpid(), signal.SIGKILL)
"""
    # waits until the process that is left lets go of the output
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=120)
    assert done.returncode == -signal.SIGKILL


def test_a_process_is_for_networks_on_a_processor():
    with pytest.raises(InputError, match="'process' is for networks on a processor"):
        beside(object(), torch.device("cuda"), "process")


def test_what_works_beside_where_nobody_says(threads):
    worker, cpu = object(), torch.device("cpu")
    made = beside(worker, cpu, None)
    assert isinstance(made, Process if sys.platform == "linux" else Here)
    made.close()
    torch.set_num_threads(1)
    assert isinstance(beside(worker, cpu, None), Here)
